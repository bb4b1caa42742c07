"""The token of those who may see the agent's pages from elsewhere: in a file that is read again, because it is renewed while the agent runs."""

import asyncio
import math
from pathlib import Path
from typing import Final

from hosting import tokens
from hosting.threads import SingleCall

LOOK_S: Final = 2.0
"""The file is read at most so often, with the requests that want the token."""
READ_DEADLINE_S: Final = 2.0
"""How long reading may take; a network's file system may hang."""
MAX_FILE_BYTES: Final = 4096


class TokenFileError(Exception):
    """The file holds no token; the message names the file and never quotes it."""


class ViewerToken:
    """The token in the file at `path`; without a path there is none. Call `load` once before anything else.

    With `may_be_missing` the file may be made later, and taken away: without it there is no token.
    """

    def __init__(self, path: Path | None = None, *, may_be_missing: bool = False) -> None:
        self._path = path
        self._may_be_missing = may_be_missing
        self._value: str | None = None
        self._look = SingleCall()
        self._look_at_s = -math.inf

    @property
    def value(self) -> str | None:
        """The token as it was read last."""
        return self._value

    @property
    def may_come_later(self) -> bool:
        """Whether there may be a token without a new start."""
        return self._may_be_missing

    def load(self) -> None:
        """Read the file. Raises `TokenFileError`."""
        self._value = self._read()

    async def refresh(self) -> None:
        """Read the file again, if that is due. Raises `TokenFileError`: then the token that was read before stays in force."""
        now_s = asyncio.get_running_loop().time()
        if self._path is None or now_s < self._look_at_s:
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
            return tokens.parse(content)
        except ValueError as error:
            raise TokenFileError(f"{self._path} {error}") from None
