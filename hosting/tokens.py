"""Tokens: read from a file, shown in a header, compared in constant time.

Callers show a token as `Authorization: Bearer …`. Behind the API server's proxy that header is the API server's own, which takes it away: there the
token travels as `Parley-Token`.
"""

import asyncio
import hmac
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hosting.threads import SingleCall

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 4000
"""A token of a service account has up to two thousand, and a header takes 8,190 bytes."""
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


def headers(token: str | None) -> dict[str, str]:
    """The headers that show a token; none without one."""
    return {"Authorization": f"Bearer {token}"} if token is not None else {}


def proxied_headers(token: str | None) -> dict[str, str]:
    """The headers that show a token behind a proxy that keeps `Authorization` to itself; none without a token."""
    return {PROXIED_HEADER: token} if token is not None else {}


def is_shown(token: str, sent: Mapping[str, str]) -> bool:
    """Whether a request's headers, by their names in lower case, show this token in either way."""
    as_bearer = _is_same(sent.get("authorization", ""), f"Bearer {token}")
    return _is_same(sent.get(PROXIED_HEADER.lower(), ""), token) or as_bearer


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


LOOK_S: Final = 2.0
"""The file is read at most so often, with the requests that want the token."""
READ_DEADLINE_S: Final = 2.0
"""How long reading may take; a network's file system may hang."""
MAX_FILE_BYTES: Final = 4096


class TokenFileError(Exception):
    """The file holds no token; the message names the file and never quotes it."""


class FileToken:
    """The token in the file at `path`, which is read again, because it is renewed while the program runs; without a path there is none. Call
    `load` once before anything else.

    With `may_be_missing` the file may be made later, and taken away: without it there is no token.
    """

    def __init__(self, path: Path | None = None, *, may_be_missing: bool = False) -> None:
        self._path = path
        self._may_be_missing = may_be_missing
        self._value: str | None = None
        self._look = SingleCall()
        self._look_at_s = -math.inf

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def value(self) -> str | None:
        return self._value

    @property
    def may_come_later(self) -> bool:
        """Whether there may be a token without a new start."""
        return self._may_be_missing

    def is_due(self, now_s: float) -> bool:
        """Whether `refresh` would read the file at this time of the loop's clock."""
        return self._path is not None and now_s >= self._look_at_s

    def load(self) -> None:
        """Read the file. Raises `TokenFileError`."""
        self._value = self._read()

    async def refresh(self) -> None:
        """Read the file again, if that is due. Raises `TokenFileError`: then the token that was read before stays in force."""
        now_s = asyncio.get_running_loop().time()
        if not self.is_due(now_s):
            return
        self._look_at_s = now_s + LOOK_S
        try:
            self._value = await self._look.run(self._read, READ_DEADLINE_S)
        except TimeoutError:
            raise TokenFileError(f"{self._path} could not be read in time") from None

    def _read(self) -> str | None:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            if self._may_be_missing:
                return None
            raise TokenFileError(f"{self._path} is missing") from None
        except OSError as error:
            raise TokenFileError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            return parse(content)
        except ValueError as error:
            raise TokenFileError(f"{self._path} {error}") from None
