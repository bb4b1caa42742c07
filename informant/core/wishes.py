"""Urgent wishes: what cannot wait for the agent's next look, until it is met, no longer needed, or told anew.

A wish begins when a resource is seen short. It is told to the agent in use, and again every `expires_s`, as long as agents heed
it. It ends as soon as more arrives, or when the resource was not seen short for `calm_s`, whether or not there was anybody to
tell: whoever registers later must not grow a VM for a workload that has ended. What an agent was told last is kept with its
session, so that it also learns when nothing is wanted any more: a published agent keeps a wish standing until it does.

A published informant asks once and swallows every later need until it is granted. Source: reference/neon.md 4.2.
"""

from dataclasses import dataclass, replace

from informant.core.sessions import Session, Sessions
from protocol.wire import MoreResources


@dataclass(frozen=True, slots=True)
class WishTiming:
    """How long a wish holds, in seconds: until it must be told again, and without need."""

    expires_s: float = 10.0
    calm_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """More of one resource is wanted. `told_to` is the serial of the session that knows, 0 where it is to be told (again);
    `last_told_to` is that of the last one that was told.

    `since_s` is when it began, `needed_s` when the resource was last seen short or, if that is later, when an agent first heard
    of it; `until_s` is when it must be told again.
    """

    since_s: float
    needed_s: float
    until_s: float = float("inf")
    told_to: int = 0
    last_told_to: int = 0


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell this agent what is wanted at `at_s`; that may be nothing."""

    session: Session
    more: MoreResources
    at_s: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is wanted now, of either resource."""

    cpu: Wish | None = None
    memory: Wish | None = None
    timing: WishTiming = WishTiming()

    def wanted(self) -> MoreResources:
        """What agents should know."""
        return MoreResources(cpu=self.cpu is not None, memory=self.memory is not None)

    def short(self, more: MoreResources, now_s: float) -> "Wishes":
        """The wishes after `more` was seen short."""
        return replace(
            self,
            cpu=self._seen(self.cpu, now_s) if more.cpu else self.cpu,
            memory=self._seen(self.memory, now_s) if more.memory else self.memory,
        )

    @staticmethod
    def _seen(wish: Wish | None, now_s: float) -> Wish:
        return Wish(now_s, now_s) if wish is None else replace(wish, needed_s=now_s)

    def arrived(self, more: MoreResources) -> "Wishes":
        """The wishes after more of these resources arrived."""
        return replace(self, cpu=None if more.cpu else self.cpu, memory=None if more.memory else self.memory)

    def told(self, tell: Tell, now_s: float) -> "Wishes":
        """The wishes after an agent took note of `tell`; one that was met or began anew meanwhile is left as it is."""
        until_s, serial = now_s + self.timing.expires_s, tell.session.serial

        def after(wish: Wish | None, is_told: bool) -> Wish | None:
            if wish is None or not is_told or wish.told_to == serial or wish.since_s > tell.at_s:
                return wish
            # Who hears it first has the time to heed it; to tell it anew makes it no more needed.
            needed_s = wish.needed_s if wish.last_told_to == serial else now_s
            return replace(wish, told_to=serial, last_told_to=serial, needed_s=needed_s, until_s=until_s)

        return replace(self, cpu=after(self.cpu, tell.more.cpu), memory=after(self.memory, tell.more.memory))

    def elapsed(self, now_s: float) -> "Wishes":
        """The wishes now: one that is not needed any more ends, one that has expired is to be told again."""
        cpu, memory = self._after(self.cpu, now_s), self._after(self.memory, now_s)
        return self if cpu is self.cpu and memory is self.memory else replace(self, cpu=cpu, memory=memory)

    def _after(self, wish: Wish | None, now_s: float) -> Wish | None:
        if wish is None or now_s < self._end_s(wish):
            return wish
        if now_s < wish.needed_s + self.timing.calm_s:
            return replace(wish, told_to=0, until_s=float("inf"))
        return None

    def _end_s(self, wish: Wish) -> float:
        """When something becomes of a wish by itself."""
        return min(wish.until_s, wish.needed_s + self.timing.calm_s)

    def due_s(self) -> float | None:
        """When the next wish ends, or must be told again."""
        ends = (self._end_s(wish) for wish in (self.cpu, self.memory) if wish is not None)
        return min(ends, default=None)

    def next_tell(self, sessions: Sessions, now_s: float) -> Tell | None:
        """What to tell the agent in use now; None while it knows, cannot understand it, or must be left in peace."""
        current = sessions.current()
        if current is None or not current.version.has_try_upscale() or now_s < current.quiet_until_s:
            return None
        wanted = self.wanted()
        is_news = any(wish is not None and wish.told_to != current.serial for wish in (self.cpu, self.memory))
        return Tell(current, wanted, now_s) if is_news or current.told != wanted else None
