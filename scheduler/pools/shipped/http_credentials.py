"""What `http-admission` shows to its service and believes of it: a bearer token and TLS, from files that may be renewed."""

import asyncio
import re
from pathlib import Path
from typing import Final

from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.threads import SingleCall, in_own_thread
from hosting.tls import Tls, TlsError, TlsFiles

MAX_TOKEN_BYTES: Final = 16 * 1024
READ_DEADLINE_S: Final = 2.0


def read_token(path: Path) -> str:
    """The bearer token in a file. Raises `ValueError`, without any of it, for what is no token."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ValueError(f"tokenFile: {path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_TOKEN_BYTES or not re.fullmatch(rb"[\x21-\x7e]+", content.strip()):
        raise ValueError(f"tokenFile: {path} must hold one token: visible ASCII characters without blanks")
    return content.strip().decode("ascii")


class Credentials:
    """The files as they were read last. `load` first, `refresh` from time to time."""

    def __init__(self, token_file: Path | None, tls: TlsFiles, log: Logger) -> None:
        self._token_file = token_file
        self._faults = FaultLog(
            log, "credentials cannot be read again, the old ones stay in force", "credentials read again"
        )
        self._reading = SingleCall()
        self.headers = {"Accept": "application/json"}
        self.tls = Tls(tls) if tls.paths() else None

    async def load(self) -> None:
        """Read everything. Raises `ValueError` for what cannot be used."""
        await self._read_token()
        if self.tls is not None:
            try:
                # Not `wait_for`: that of Python 3.11 may lose a cancellation.
                async with asyncio.timeout(READ_DEADLINE_S):
                    await in_own_thread(self.tls.load)
            except TlsError as error:
                raise ValueError(f"caFile, certFile, keyFile: {error}") from None
            except TimeoutError:
                raise ValueError("caFile, certFile, keyFile: could not be read in time") from None

    async def refresh(self) -> None:
        """Read again what was renewed. What cannot be used is reported once, and what was read before stays in force."""
        try:
            await self._read_token()
            if self.tls is not None:
                await self.tls.refresh()
        except (ValueError, TlsError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()

    async def _read_token(self) -> None:
        path = self._token_file
        if path is None:
            return
        try:
            token = await self._reading.run(lambda: read_token(path), READ_DEADLINE_S)
        except TimeoutError:
            raise ValueError(f"tokenFile: {path} could not be read in time") from None
        self.headers = {**self.headers, "Authorization": f"Bearer {token}"}
