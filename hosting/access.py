"""Who calls a server, and what they may do there: scopes, callers, and the gate that a server asks before it reads a body.

A gate is told the head of a request: the address of the peer, the headers, and the certificate that the peer has shown. Its answer is a
`Caller` or an `AccessRefused`. Refusals are counted and logged in one place, `Refusals`, the ones that a server's owner decides later, too.
"""

import enum
import functools
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from hosting.addresses import is_loopback
from protocol.reasons import ErrorCode
from protocol.values import Value

if TYPE_CHECKING:
    from hosting.logs import Logger


class AccessScope(enum.StrEnum):
    """The rights at a server's port. Each route belongs to one."""

    OPEN = "open"
    """Health, and the description of the routes: for everybody."""
    KNOWN = "known"
    """For every caller that has any right."""
    PERMITS = "permits"
    """Ask for permits and listen for notices, as an agent."""
    PAGES = "pages"
    """Read the pages about VMs, nodes, pods and decisions."""
    WRITE = "write"
    """Change pools and switches."""
    EXTENDER = "extender"
    """Call as kube-scheduler does: bind pods."""
    METRICS = "metrics"
    """Read the metrics."""


UNIX_PEER: Final = "unix"
"""The peer at a Unix socket, which is a user of this machine that may open it."""
GRANTED: Final = frozenset(AccessScope) - {AccessScope.OPEN, AccessScope.KNOWN}
"""The scopes that a caller may be given."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate that was verified in the handshake: its SANs (URIs and DNS names), and its end in Unix seconds."""

    names: tuple[str, ...]
    until_s: float


class RequestHead(Value, frozen=True):
    """The part of a request by which a gate decides. `peer` is an address, or `UNIX_PEER`; empty if the peer was gone before it was known.
    Header names are in lower case."""

    peer: str
    headers: Mapping[str, str]
    certificate: ClientCertificate | None = None

    @property
    def is_from_here(self) -> bool:
        """Whether the caller is on this machine."""
        return self.peer == UNIX_PEER or is_loopback(self.peer)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that is known. `nodes` are the names or globs of the nodes for whose VMs it may ask; None: all. `is_identified` says that it
    has shown a credential of its own: else its name is an address."""

    name: str
    scopes: frozenset[AccessScope]
    nodes: tuple[str, ...] | None = None
    is_identified: bool = False
    is_published: bool = False
    """Whether it may ask as published agents do, and in no other way."""

    def may(self, scope: AccessScope) -> bool:
        return (
            scope in self.scopes
            or scope is AccessScope.OPEN
            or (scope is AccessScope.KNOWN and bool(self.scopes))
        )


def is_among(node: str, nodes: tuple[str, ...] | None) -> bool:
    """Whether `node` is one of these names or globs; None means every node."""
    return nodes is None or node in nodes or any(fnmatchcase(node, each) for each in nodes)


@dataclass(frozen=True, slots=True)
class AccessRefused:
    """Why a caller is not let in. `reason` is one word of few, for metrics; `message` is for the caller and never quotes a credential."""

    status: int
    reason: str
    message: str
    code: ErrorCode = ErrorCode.FORBIDDEN
    retry_after_s: int | None = None


Admission: TypeAlias = Caller | AccessRefused


def missing_right(caller: Caller, scope: AccessScope) -> AccessRefused:
    has = ", ".join(sorted(caller.scopes)) or "none"
    return AccessRefused(403, "scope", f"{caller.name} has no right {scope} here; its rights: {has}")


_LOOPBACK: Final = 'the right "{}" is for callers on this machine only{}'
_WEB_PAGE: Final = AccessRefused(403, "origin", "web pages are not served")


def web_page(head: RequestHead, scope: AccessScope) -> AccessRefused | None:
    """A page in a browser on this machine, which may be anybody's, changes nothing and binds no pods."""
    return (
        _WEB_PAGE if scope in (AccessScope.WRITE, AccessScope.EXTENDER) and "origin" in head.headers else None
    )


TELL_EACH_S: Final = 10.0
"""A refusal of the same kind to the same caller is logged so often, with their number since."""
MAX_TOLD: Final = 1024
"""Callers that are remembered for that."""


@dataclass(eq=False, slots=True)
class Refusals:
    """Counts refusals by scope and reason, and logs them: a caller that tries all the time fills no log."""

    log: "Logger"
    clock: Callable[[], float] = time.monotonic
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _told: OrderedDict[tuple[str, str, str], tuple[float, int]] = field(default_factory=OrderedDict)
    """By caller, right and reason: when it was logged, and how often it came since."""

    def add(self, who: str, scope: AccessScope, refusal: AccessRefused, **more: str) -> None:
        self.counts[scope.value, refusal.reason] += 1
        now_s, key = self.clock(), (who, scope.value, refusal.reason)
        told_s, since = self._told.get(key, (-TELL_EACH_S, 0))
        if now_s - told_s < TELL_EACH_S:
            self._told[key] = (told_s, since + 1)
            return
        self._told[key] = (now_s, 0)
        self._told.move_to_end(key)
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        self.log.warning(
            "refused",
            caller=who,
            right=scope.value,
            reason=refusal.reason,
            why=refusal.message,
            more_before=since,
            **more,
        )


class Gate(Protocol):
    """Decides who may call. One for each server."""

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission | Awaitable[Admission]:
        """The caller if it may use routes of this scope. It is awaited only if the credential must be checked elsewhere."""

    @property
    def refusals(self) -> Refusals:
        """Takes the refusals that were answered."""


_by_address: Final = functools.lru_cache(maxsize=1024)(Caller)
"""A caller that is known by its address and rights; most call again."""


@dataclass(frozen=True, slots=True)
class LocalGate:
    """Lets in every caller on this machine with all rights, and others with the rights in `elsewhere` (none by default)."""

    refusals: Refusals
    elsewhere: frozenset[AccessScope] = frozenset()
    hint: str = ""
    """Said to those who are refused: how they could be let in."""

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission:
        if (refused := web_page(head, scope)) is not None:
            return refused
        caller = _by_address(head.peer, GRANTED if head.is_from_here else self.elsewhere)
        if not caller.may(scope):
            return AccessRefused(403, "address", _LOOPBACK.format(scope, self.hint))
        return caller
