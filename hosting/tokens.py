"""Tokens: read from a file, shown in a header, compared in constant time.

Callers show a token as `Authorization: Bearer …`. Behind the API server's proxy that header is the API server's own, which takes it away: there the
token travels as `Parley-Token`.
"""

import hmac
from collections.abc import Mapping
from typing import Final

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 512
PROXIED_HEADER: Final = "Parley-Token"
RULE: Final = f"{MIN_CHARACTERS} to {MAX_CHARACTERS} printable characters without blanks"


def parse(content: bytes) -> str:
    """The token that a file holds. Raises `ValueError`; its text never quotes the file."""
    must = f"must hold a token of {RULE}; it holds"
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{must} bytes that are no ASCII") from None
    if not MIN_CHARACTERS <= len(token) <= MAX_CHARACTERS:
        found = f"more than {MAX_CHARACTERS}" if len(token) > MAX_CHARACTERS else str(len(token))
        raise ValueError(f"{must} {found} characters")
    if not token.isprintable() or " " in token:
        raise ValueError(f"{must} others")
    return token


def headers(token: str | None) -> dict[str, str] | None:
    """The headers that show a token; None without one."""
    return {"Authorization": f"Bearer {token}"} if token is not None else None


def proxied_headers(token: str | None) -> dict[str, str]:
    """The headers that show a token behind a proxy that keeps `Authorization` to itself; none without a token."""
    return {PROXIED_HEADER: token} if token is not None else {}


def is_shown(token: str, sent: Mapping[str, str]) -> bool:
    """Whether a request's headers, by their names in lower case, show this token in either way."""
    as_bearer = _is_same(sent.get("authorization", ""), f"Bearer {token}")
    return _is_same(sent.get(PROXIED_HEADER.lower(), ""), token) or as_bearer


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
