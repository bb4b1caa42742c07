"""The gate of a scheduler with an access file: certificates, bearer tokens, then addresses.

A token of a service account is checked by the API server, once for all its requests of the next `TRUSTED_S`: a token that was revoked, or
whose pod has gone, opens nothing after a minute. Reviews are bounded in number and time, and text that cannot be such a token is refused
without one, so that strangers cannot make this process call the API server at will.
"""

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import msgspec

from hosting import tokens
from hosting.access import (
    AccessRefused,
    AccessScope,
    Admission,
    Caller,
    Refusals,
    RequestHead,
    missing_right,
    web_page,
)
from hosting.fault_log import FaultLog
from hosting.tokens import FileToken, TokenFileError
from protocol.reasons import ErrorCode
from scheduler.access.callers import Callers, TokenIdentity

TRUSTED_S: Final = 45.0
"""How long a review's answer counts. With `REVIEW_S` it is less than a minute."""
DISTRUSTED_S: Final = 10.0
"""How long a refusal of the API server counts: a pod that has just begun may be unknown to it for a moment."""
REVIEW_S: Final = 5.0
MAX_CACHED: Final = 20_480
MAX_REVIEWS: Final = 32
"""At the same time; others wait for their turn."""
MAX_WAITING: Final = 16_384
"""Reviews under way or waiting for their turn, as after a change of leaders; beyond that callers are told to come again."""
MAX_DISTRUSTED: Final = 4096
MAX_TOKEN_CHARS: Final = 8192
RETRY_AFTER_S: Final = 1
_PROXIED: Final = tokens.PROXIED_HEADER.lower()


class ReviewError(Exception):
    """A token could not be checked now: the API server does not answer, or refuses the review."""


class TokenReviewer(Protocol):
    """Checks tokens of service accounts."""

    async def review(self, token: str) -> TokenIdentity | None:
        """The identity; None if the token is not valid for us. Raises `ReviewError`."""


_Verdict: TypeAlias = TokenIdentity | None


@dataclass(frozen=True, slots=True)
class _Counting:
    """A verdict, from when on it is asked for anew, and until when it counts."""

    verdict: _Verdict
    renew_s: float
    until_s: float


@dataclass(eq=False, slots=True)
class TokenCache:
    """The verdicts on tokens, by the SHA-256 of each: no token is kept. Tokens that come at the same time have one review.

    A verdict that is in use is asked for anew before it ends, each token at its own moment, so that 10,000 agents do not wait all at once.
    Tokens that are not believed are remembered apart: they push no good one out.
    """

    reviewer: TokenReviewer
    clock: Callable[[], float] = time.monotonic
    reviews: int = 0
    _good: OrderedDict[bytes, _Counting] = field(default_factory=OrderedDict)
    _bad: OrderedDict[bytes, _Counting] = field(default_factory=OrderedDict)
    _asked: dict[bytes, "asyncio.Task[_Verdict]"] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_REVIEWS))

    def known(self, token: str) -> tuple[_Verdict] | None:
        """The verdict, if one that still counts is there."""
        digest, now_s = _digest(token), self.clock()
        found = self._good.get(digest) or self._bad.get(digest)
        if found is None or found.until_s <= now_s:
            return None
        if found.renew_s <= now_s and digest not in self._asked and len(self._asked) < MAX_WAITING:
            _ = self._ask(digest, token)
        return (found.verdict,)

    async def verdict(self, token: str) -> _Verdict:
        """The verdict of a review. Raises `ReviewError`."""
        digest = _digest(token)
        task = self._asked.get(digest)
        if task is None:
            if len(self._asked) >= MAX_WAITING:
                raise ReviewError(f"{MAX_WAITING} tokens are being checked already")
            task = self._ask(digest, token)
        return await asyncio.shield(task)  # others may wait for the same review

    def _ask(self, digest: bytes, token: str) -> "asyncio.Task[_Verdict]":
        task = self._asked[digest] = asyncio.create_task(self._review(digest, token), name="token review")
        task.add_done_callback(lambda done: self._end(digest, done))
        return task

    def _end(self, digest: bytes, done: "asyncio.Task[_Verdict]") -> None:
        self._asked.pop(digest, None)
        if not done.cancelled():
            done.exception()  # of a renewal nobody asks: the old verdict counts until its end

    async def _review(self, digest: bytes, token: str) -> _Verdict:
        try:
            async with asyncio.timeout(2 * REVIEW_S), self._turns:
                self.reviews += 1
                # The verdict is as old as the moment in which it was asked for.
                asked_s = self.clock()
                found = await self.reviewer.review(token)
        except TimeoutError:
            raise ReviewError("too many tokens are being checked") from None
        self._good.pop(digest, None)
        self._bad.pop(digest, None)
        if found is not None:
            renew_s = asked_s + TRUSTED_S * (0.4 + 0.4 * digest[0] / 255)
            _keep(self._good, digest, _Counting(found, renew_s, asked_s + TRUSTED_S), MAX_CACHED)
        else:
            until_s = asked_s + DISTRUSTED_S
            _keep(self._bad, digest, _Counting(None, until_s, until_s), MAX_DISTRUSTED)
        return found

    async def close(self) -> None:
        """End the reviews that are under way."""
        under_way = list(self._asked.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _keep(kept: OrderedDict[bytes, _Counting], digest: bytes, found: _Counting, most: int) -> None:
    kept[digest] = found
    if len(kept) > most:
        kept.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


class _Claims(msgspec.Struct):
    aud: str | list[str] = ""
    exp: float = 0.0


def cannot_be_valid(token: str, audience: str, now_unix_s: float) -> str:
    """Why a text needs no review, as it cannot be a token of a service account for this audience; empty if it may be one. The claims are not
    believed for anything else."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 3:
        return "it is no token of a service account"
    try:
        text = parts[1].encode("ascii")
        claims = msgspec.json.decode(base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)), type=_Claims)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return "it is no token of a service account"
    audiences = claims.aud if isinstance(claims.aud, list) else [claims.aud]
    if audience not in audiences:
        return f"it is not for the audience {audience}"
    return "it has expired" if claims.exp <= now_unix_s else ""


@dataclass(frozen=True, slots=True)
class KnownCallers:
    """The access file as it is now: its callers, the audience of tokens, and the callers with tokens of files."""

    callers: Callers
    audience: str
    files: tuple[tuple[FileToken, Caller], ...] = ()


_ENDED: Final = AccessRefused(401, "certificate-ended", "the certificate has expired", ErrorCode.UNAUTHORISED)
_NOBODY: Final = "show a client certificate or a bearer token"


class AccessGate:
    """Lets in the callers of the access file. `known` may be replaced at any time. `cache` is None if no API server is there to ask."""

    def __init__(
        self,
        known: KnownCallers,
        refusals: Refusals,
        cache: TokenCache | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.known = known
        self._refusals = refusals
        self._file_faults = FaultLog(
            refusals.log, "token file not usable, what was read before stays", "token file usable again"
        )
        self.cache = cache
        self._wall = wall

    @property
    def refusals(self) -> Refusals:
        return self._refusals

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission | Awaitable[Admission]:
        """The caller: by its certificate, else by its token, else by its address. The first of these that has the right decides."""
        if (refused := web_page(head, scope)) is not None:
            return refused
        certificate, found = head.certificate, None
        has_ended = certificate is not None and certificate.until_s <= self._wall()
        if certificate is not None and not has_ended:
            found = self.known.callers.by_certificate(certificate.names)
            if found is not None and found.may(scope):
                return found
        bearer = head.headers.get("authorization", "")
        if bearer or _PROXIED in head.headers:
            return self._by_token(head, scope, bearer, found)
        if has_ended:
            return _ENDED
        return self._by_address(head, scope, found)

    def _by_address(self, head: RequestHead, scope: AccessScope, other: Caller | None) -> Admission:
        found = self.known.callers.by_address(head.peer)
        if found is not None and found.may(scope):
            return found
        known = other or found
        if known is not None:
            return missing_right(known, scope)
        if head.certificate is not None:
            named = ", ".join(head.certificate.names)[:200] or "no name"
            message = f"nothing is granted to a certificate of {named}"
            return AccessRefused(403, "unknown-certificate", message)
        return AccessRefused(401, "no-credential", _NOBODY, ErrorCode.UNAUTHORISED)

    def _by_token(
        self, head: RequestHead, scope: AccessScope, bearer: str, other: Caller | None
    ) -> Admission | Awaitable[Admission]:
        now_s = asyncio.get_running_loop().time()
        if any(file.is_due(now_s) for file, _ in self.known.files):
            return self._after_reading(head, scope, bearer, other)
        return self._by_known_token(head, scope, bearer, other)

    async def _after_reading(
        self, head: RequestHead, scope: AccessScope, bearer: str, other: Caller | None
    ) -> Admission:
        """The files of tokens are read with the requests that show one, at most every two seconds."""
        try:
            for file, _ in self.known.files:
                await file.refresh()
        except TokenFileError as error:
            self._file_faults.failed(error)
        else:
            self._file_faults.worked()
        found = self._by_known_token(head, scope, bearer, other)
        return found if isinstance(found, Caller | AccessRefused) else await found

    def _by_known_token(
        self, head: RequestHead, scope: AccessScope, bearer: str, other: Caller | None
    ) -> Admission | Awaitable[Admission]:
        for file, caller in self.known.files:
            if file.value is not None and tokens.is_shown(file.value, head.headers):
                return caller if caller.may(scope) else missing_right(caller, scope)
        kind, _, token = bearer.partition(" ")
        token = token.strip() or head.headers.get(_PROXIED, "")
        if not token or (bearer and kind.lower() != "bearer"):
            return AccessRefused(401, "token", "Authorization must be `Bearer TOKEN`", ErrorCode.UNAUTHORISED)
        if self.cache is None or not self.known.callers.has_accounts:
            return _unknown_token("no such token is known here")
        why = cannot_be_valid(token, self.known.audience, self._wall())
        if why:
            return _unknown_token(why)
        verdict = self.cache.known(token)
        if verdict is not None:
            return self._judged(verdict[0], scope, other)
        return self._reviewed(self.cache, token, scope, other)

    async def _reviewed(
        self, cache: TokenCache, token: str, scope: AccessScope, other: Caller | None
    ) -> Admission:
        try:
            verdict = await cache.verdict(token)
        except ReviewError as error:
            message = f"the token cannot be checked now: {error}"
            return AccessRefused(503, "unchecked", message, ErrorCode.CLUSTER_UNREACHABLE, RETRY_AFTER_S)
        return self._judged(verdict, scope, other)

    def _judged(self, identity: _Verdict, scope: AccessScope, other: Caller | None) -> Admission:
        if identity is None:
            return _unknown_token("the API server does not believe it")
        caller = self.known.callers.by_token(identity)
        if caller is not None and caller.may(scope):
            return caller
        known = caller or other
        if known is not None:
            return missing_right(known, scope)
        account = f"{identity.namespace}/{identity.name}"
        return AccessRefused(403, "unknown-account", f"nothing is granted to the service account {account}")


def _unknown_token(why: str) -> AccessRefused:
    return AccessRefused(401, "token", f"the token opens nothing: {why}", ErrorCode.UNAUTHORISED)
