"""Bearer tokens: read from a file, shown in a header, compared in constant time."""

import hmac
from collections.abc import Mapping
from typing import Final

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 512
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


def is_shown(token: str, sent: Mapping[str, str]) -> bool:
    """Whether a request's headers show this token."""
    given = sent.get("authorization", "")
    return hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode())
