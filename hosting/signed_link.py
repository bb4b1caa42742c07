"""One program's end of a signed link: the file of the secret, the clocks, and the numbers (`hosting.signing` has the signatures).

The file is read when it is needed first, and again after a signature was not believed, on either side: a guest that goes on from a saved
state has another secret than the one that it remembers. While it cannot be read, the secret that was read last stays in force.
"""

import itertools
import os
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from hosting.client import Answered, HttpClient, Outcome, Unanswered
from hosting.logs import Logger
from hosting.signing import HEADER, CallRefusal, Direction, Secret, SignedRequest, Verifier, sign
from hosting.token_bucket import TokenBucket

MAX_FILE_BYTES: Final = 256
LOOK_S: Final = 1.0
"""The file is read at most so often."""
_FORBIDDEN: Final = stat.S_IRWXO | stat.S_IWGRP
HARDWARE_CLOCK: Final = Path("/sys/class/rtc/rtc0/since_epoch")


class SecretFileError(Exception):
    """The file holds no secret, or others may read it. The message names the file and never quotes it."""


def read_secret(path: Path) -> Secret:
    """The secret in a file. Raises `SecretFileError`."""
    try:
        return Secret.parse(_content(path, MAX_FILE_BYTES))
    except ValueError as error:
        raise SecretFileError(f"{path} {error}") from None


def check_file(path: Path) -> None:
    """See that a file may hold a secret, without reading it. Raises `SecretFileError`."""
    _content(path, 0)


def _content(path: Path, most_bytes: int) -> bytes:
    """The first bytes of a file that is fit for a secret. Raises `SecretFileError`.

    A link is followed, and what it leads to must be fit by itself: a regular file of ours or of root, closed to others, that its group
    cannot write. The group may read, because the maker of VMs and the agent are often two users.
    """
    try:
        # Opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise SecretFileError(f"{path} is no regular file")
            if found.st_uid not in (0, os.geteuid()):
                raise SecretFileError(f"{path} belongs to user {found.st_uid}: it must be ours or root's")
            if found.st_mode & _FORBIDDEN:
                mode = stat.S_IMODE(found.st_mode)
                raise SecretFileError(
                    f"{path} has the mode {mode:04o}: others must not reach it (0600 or 0640)"
                )
            return os.read(handle, most_bytes)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise SecretFileError(f"{path} is missing") from None
    except OSError as error:
        raise SecretFileError(f"{path} cannot be read: {error.strerror}") from None


def system_ms() -> int:
    return time.time_ns() // 1_000_000


def hardware_ms() -> int:
    """The machine's own clock, which goes on while a guest is saved or paused. The system's if there is none, or if that one is behind, as where
    it shows local time: it must make no old request a new one."""
    try:
        return max(int(HARDWARE_CLOCK.read_text()) * 1000, system_ms())
    except (OSError, ValueError):
        return system_ms()


@dataclass(frozen=True, slots=True)
class Directions:
    """The direction that an end signs, and the one that it checks."""

    signs: Direction
    checks: Direction


OF_AGENT: Final = Directions("agent to informant", "informant to agent")
OF_INFORMANT: Final = Directions("informant to agent", "agent to informant")


class SignedLink:
    """Signs what this end says, and checks what it hears. `clocks` are tried in turn: a request is in time if it is so by one of them, and
    that one is used for signing from then on."""

    def __init__(
        self,
        path: Path,
        directions: Directions,
        clocks: tuple[Callable[[], int], ...] = (system_ms,),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._directions = directions
        self._clocks = clocks
        self._now_s = now_s
        self._numbers = itertools.count(1)  # one for all registrations: so it rises for each
        self._verifier: Verifier | None = None
        self._fault = ""
        self._look_at_s = 0.0

    def load(self) -> None:
        """Read the file. Raises `SecretFileError`."""
        self._look_at_s = self._now_s() + LOOK_S
        secret = read_secret(self._path)
        if self._verifier is None or self._verifier.secret != secret:
            self._verifier = Verifier(secret, self._directions.checks)

    def look_again(self) -> bool:
        """Read the file again, if that is due; whether there is another secret now."""
        if self._now_s() < self._look_at_s:
            return False
        before = self._verifier
        try:
            self.load()
        except SecretFileError as error:
            self._fault = str(error)
        return self._verifier is not before

    def headers(self, registration: UUID, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """The header that signs a request. Raises `SecretFileError` if there has never been a secret."""
        if self._verifier is None and not self.look_again():
            raise SecretFileError(self._fault)
        assert self._verifier is not None
        signature = sign(
            self._verifier.secret,
            self._directions.signs,
            registration,
            SignedRequest(method, path, body),
            unix_ms=self._clocks[0](),
            number=next(self._numbers),
        )
        return {HEADER: signature}

    def refusal(
        self, header: str | None, request: SignedRequest, registration: UUID | None = None
    ) -> CallRefusal | None:
        """Why a request is refused; None if it is to be believed. With `registration` it must be signed for that one."""
        if self._verifier is None and not self.look_again():
            return CallRefusal(
                "no-secret", "the secret of this VM cannot be used here; the log of the start says why"
            )
        refused = self._by_clocks(header, request, registration)
        if refused is not None and refused.reason == "forged" and self.look_again():
            return self._by_clocks(header, request, registration)
        return refused

    def _by_clocks(
        self, header: str | None, request: SignedRequest, registration: UUID | None
    ) -> CallRefusal | None:
        assert self._verifier is not None
        first: CallRefusal | None = None
        for clock in self._clocks:
            refused = self._verifier.check(header, request, clock(), registration)
            if refused is None:
                self._clocks = (clock, *(each for each in self._clocks if each is not clock))
                return None
            first = first or refused
            if refused.reason != "clock":
                break
        return first


async def call(
    client: HttpClient,
    link: SignedLink | None,
    registration: UUID,
    method: str,
    url: str,
    *,
    body: bytes | None,
    deadline_s: float,
) -> Outcome:
    """Call a peer, signed if there is a link."""
    if link is None:
        return await client.call(method, url, body=body, deadline_s=deadline_s)
    try:
        headers = link.headers(registration, method, urlsplit(url).path, body or b"")
    except SecretFileError as error:
        return Unanswered("cut", str(error))
    outcome = await client.call(method, url, body=body, deadline_s=deadline_s, headers=headers)
    if isinstance(outcome, Answered) and outcome.status == 401:
        link.look_again()
    return outcome


LINES_BURST: Final = 10
LINES_PER_S: Final = 0.1


class RefusalTally:
    """Counts refused requests by their reasons, and logs them: some at once, and then one line in ten seconds, so that a flood fills no disk."""

    def __init__(self, log: Logger, told: str) -> None:
        self._log = log
        self._told = told
        self._lines = TokenBucket(LINES_BURST, LINES_PER_S)
        self._untold = 0
        self.counts: Counter[str] = Counter()

    def refused(self, refusal: CallRefusal, now_s: float, **about: str) -> None:
        self.counts[refusal.reason] += 1
        if not self._lines.take(now_s):
            self._untold += 1
            return
        more = {"others_since": self._untold} if self._untold else {}
        self._untold = 0
        self._log.warning(self._told, reason=refusal.reason, why=refusal.why, **about, **more)
