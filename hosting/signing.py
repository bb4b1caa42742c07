"""Signatures between the agent and the informant of one VM, by the VM's secret; plain HTTP needs no more, because nothing that they say is secret.

A request carries `Parley-Signature: v1 <registration> <unix_ms> <number> <hex>`: an HMAC-SHA256 over method, path, registration, time, number
and body. Each direction and each registration has a key of its own, so a request of one is worth nothing to the other. `registration` is
the ID of the agent's registration, or one that the sender has drawn for requests that belong to none. A published peer ignores the header.

Nothing here does I/O: time comes in as a value. `hosting.signed_link` reads the file of a secret and the clocks.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from uuid import UUID

HEADER: Final = "Parley-Signature"
SECRET_BYTES: Final = 32
TOLERANCE_MS: Final = 60_000
"""The clocks of agent and guest may differ by so much."""
MOST_REGISTRATIONS: Final = 256
"""An agent that is refused again and again registers anew every few seconds."""
_SECRET: Final = re.compile(rb"[0-9a-fA-F]{64}")
_SIGNATURE: Final = re.compile(
    r"v1 ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) ([0-9]{1,15}) ([0-9]{1,15}) ([0-9a-f]{64})"
)

Direction = Literal["agent to informant", "informant to agent"]
RefusalReason = Literal[
    "unsigned", "malformed", "forged", "clock", "replayed", "crowded", "no-secret", "unknown", "flood"
]
SIGNATURE_REFUSALS: Final[tuple[RefusalReason, ...]] = (
    "unsigned",
    "malformed",
    "forged",
    "clock",
    "replayed",
    "crowded",
)
"""The others are of calls that are refused for other reasons than their signature."""


class Secret:
    """The secret of one VM. It never shows itself; two are equal if they hold the same bytes."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if len(value) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes")
        self._value = value

    @classmethod
    def parse(cls, content: bytes) -> "Secret":
        """The secret that a file holds as 64 hexadecimal digits. Raises `ValueError`; its text never quotes the file."""
        digits = content.strip()
        if _SECRET.fullmatch(digits) is None:
            raise ValueError(f"must hold {2 * SECRET_BYTES} hexadecimal digits and nothing else")
        return cls(bytes.fromhex(digits.decode("ascii")))

    def written(self) -> str:
        """The content of the secret's file."""
        return f"{self._value.hex()}\n"

    def key(self, direction: Direction, registration: UUID) -> bytes:
        """The key of one registration in one direction."""
        return hmac.digest(self._value, b"parley v1 " + direction.encode() + registration.bytes, "sha256")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that are signed. `path` is without a query, which no signed request has."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CallRefusal:
    """Why a request is not believed: `reason` for metrics, `why` for people on both sides. `why` quotes nothing of the request."""

    reason: RefusalReason
    why: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """The words of a signature header that are not proved yet."""

    registration: UUID
    unix_ms: int
    number: int
    digest: str


def sign(
    secret: Secret,
    direction: Direction,
    registration: UUID,
    request: SignedRequest,
    *,
    unix_ms: int,
    number: int,
) -> str:
    """The value of the header `Parley-Signature`."""
    digest = _digest(secret, direction, request, registration, unix_ms, number)
    return f"v1 {registration} {unix_ms} {number} {digest}"


def _digest(
    secret: Secret,
    direction: Direction,
    request: SignedRequest,
    registration: UUID,
    unix_ms: int,
    number: int,
) -> str:
    parts = (
        request.method.encode(),
        request.path.encode(errors="surrogatepass"),
        registration.bytes,
        b"%d" % unix_ms,
        b"%d" % number,
        request.body,
    )
    # Each part with its length: no two requests have the same text.
    signed = b"".join(b"%d:%b," % (len(part), part) for part in parts)
    return hmac.digest(secret.key(direction, registration), signed, hashlib.sha256).hex()


_Seen: TypeAlias = tuple[int, int]
"""The highest number of a registration, and the latest time, in milliseconds, at which it was still good."""


@dataclass(slots=True)
class Verifier:
    """Checks what comes from one direction under one secret, and remembers the highest number of each registration.

    A registration is forgotten only when all its requests are too old to be believed, so forgetting lets no replay in. A verifier that is
    made anew has forgotten everything: for `TOLERANCE_MS` it takes a request that an earlier one took.
    """

    secret: Secret = field(repr=False)
    direction: Direction
    _seen: dict[UUID, _Seen] = field(default_factory=dict, init=False)

    def check(
        self, header: str | None, request: SignedRequest, now_ms: int, registration: UUID | None = None
    ) -> CallRefusal | None:
        """Why the request is refused; None if it is to be believed, which uses its number up. With `registration` it must be signed for that one."""
        if not header:
            return CallRefusal("unsigned", f"this VM has a secret: the header {HEADER} is missing")
        claim = _read(header)
        if claim is None:
            return CallRefusal("malformed", f"the header {HEADER} is none of version 1")
        expected = _digest(
            self.secret, self.direction, request, claim.registration, claim.unix_ms, claim.number
        )
        if not hmac.compare_digest(expected, claim.digest) or registration not in (None, claim.registration):
            return CallRefusal("forged", "the signature is not that of this VM for this request")
        return self._believe(claim, now_ms)

    def _believe(self, claim: _Claim, now_ms: int) -> CallRefusal | None:
        off_ms = claim.unix_ms - now_ms
        if abs(off_ms) > TOLERANCE_MS:
            how = "ahead of" if off_ms > 0 else "behind"
            told = f"its time is {abs(off_ms) / 1000:.0f} s {how} the clock here; {TOLERANCE_MS // 1000} s are tolerated"
            return CallRefusal("clock", told)
        highest, good_until_ms = self._seen.get(claim.registration, (-1, 0))
        if claim.number <= highest:
            return CallRefusal("replayed", f"number {claim.number} is not above {highest}, the last one")
        if highest < 0 and not self._has_room(now_ms):
            return CallRefusal(
                "crowded", f"{MOST_REGISTRATIONS} registrations have called within the last minutes"
            )
        self._seen[claim.registration] = claim.number, max(good_until_ms, claim.unix_ms + TOLERANCE_MS)
        return None

    def _has_room(self, now_ms: int) -> bool:
        if len(self._seen) >= MOST_REGISTRATIONS:
            self._seen = {each: seen for each, seen in self._seen.items() if seen[1] >= now_ms}
        return len(self._seen) < MOST_REGISTRATIONS


def _read(header: str) -> _Claim | None:
    found = _SIGNATURE.fullmatch(header)
    if found is None:
        return None
    registration, unix_ms, number, digest = found.groups()
    return _Claim(UUID(registration), int(unix_ms), int(number), digest)
