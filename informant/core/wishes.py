"""Wishes: more of a resource that is asked of the agent, because the guest cannot wait for the agent's next look.

A wish begins when a resource is seen short. Wishes are delivered to the agent in use by `/try-upscale`, and again every `expires_s` while
the shortage lasts. A wish ends as soon as more arrives, or when the resource was not seen short for `calm_s`, whether or not there was an
agent to hear of it: an agent that registers later must not grow a VM for a workload that has ended. The last delivery is kept with the
agent's session, so that the agent also learns when nothing is wished for any more: a published agent keeps a wish standing until it does.

A published informant asks once and swallows every later need until it is granted. Source: reference/neon.md 4.2.
"""

from dataclasses import dataclass, replace

from informant.core.sessions import Session, Sessions
from protocol.wire import MoreResources


@dataclass(frozen=True, slots=True)
class WishTiming:
    """How long a wish holds, in seconds: until the next delivery, and without a shortage."""

    expires_s: float = 10.0
    calm_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """More of one resource is wished for.

    `delivered_to` is the serial of the session that knows, 0 if a delivery is due; `last_delivered_to` that of the last session
    that was told. The wish began at `since_s`. `needed_s` is when the resource was last seen short or, if that is later, when
    an agent first heard of the wish; `until_s` is when the next delivery is due.
    """

    since_s: float
    needed_s: float
    until_s: float = float("inf")
    delivered_to: int = 0
    last_delivered_to: int = 0


@dataclass(frozen=True, slots=True)
class TryUpscale:
    """`POST /try-upscale`: deliver to this agent the wishes at `at_s`; there may be none."""

    session: Session
    resources: MoreResources
    at_s: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes that stand, for either resource."""

    cpu: Wish | None = None
    memory: Wish | None = None
    timing: WishTiming = WishTiming()

    def resources(self) -> MoreResources:
        return MoreResources(cpu=self.cpu is not None, memory=self.memory is not None)

    def seen_short(self, resources: MoreResources, now_s: float) -> "Wishes":
        return replace(
            self,
            cpu=self._needed(self.cpu, now_s) if resources.cpu else self.cpu,
            memory=self._needed(self.memory, now_s) if resources.memory else self.memory,
        )

    @staticmethod
    def _needed(wish: Wish | None, now_s: float) -> Wish:
        return Wish(now_s, now_s) if wish is None else replace(wish, needed_s=now_s)

    def arrived(self, resources: MoreResources) -> "Wishes":
        return replace(
            self,
            cpu=None if resources.cpu else self.cpu,
            memory=None if resources.memory else self.memory,
        )

    def delivered(self, call: TryUpscale, now_s: float) -> "Wishes":
        """The wishes after an agent took note of `call`; a wish that was met or began anew meanwhile stays as it is."""
        until_s, serial = now_s + self.timing.expires_s, call.session.serial

        def after(wish: Wish | None, is_named: bool) -> Wish | None:
            if wish is None or not is_named or wish.delivered_to == serial or wish.since_s > call.at_s:
                return wish
            # An agent that hears of it first has the time to heed it; a repetition makes it no more needed.
            needed_s = wish.needed_s if wish.last_delivered_to == serial else now_s
            return replace(
                wish, delivered_to=serial, last_delivered_to=serial, needed_s=needed_s, until_s=until_s
            )

        named = call.resources
        return replace(self, cpu=after(self.cpu, named.cpu), memory=after(self.memory, named.memory))

    def elapsed(self, now_s: float) -> "Wishes":
        """The wishes now: without a shortage a wish ends, and one whose delivery has expired is to be delivered again."""
        cpu, memory = self._after(self.cpu, now_s), self._after(self.memory, now_s)
        return self if cpu is self.cpu and memory is self.memory else replace(self, cpu=cpu, memory=memory)

    def _after(self, wish: Wish | None, now_s: float) -> Wish | None:
        if wish is None or now_s < self._end_s(wish):
            return wish
        if now_s < wish.needed_s + self.timing.calm_s:
            return replace(wish, delivered_to=0, until_s=float("inf"))
        return None

    def _end_s(self, wish: Wish) -> float:
        return min(wish.until_s, wish.needed_s + self.timing.calm_s)

    def due_s(self) -> float | None:
        """When time alone changes the first of the wishes."""
        ends = (self._end_s(wish) for wish in (self.cpu, self.memory) if wish is not None)
        return min(ends, default=None)

    def next_call(self, sessions: Sessions, now_s: float) -> TryUpscale | None:
        """The next delivery to the agent in use; None while that agent knows, cannot understand it, or is left in peace."""
        current = sessions.current()
        if current is None or not current.version.has_try_upscale() or now_s < current.quiet_until_s:
            return None
        resources, wishes = self.resources(), (self.cpu, self.memory)
        is_news = any(wish is not None and wish.delivered_to != current.serial for wish in wishes)
        is_due = is_news or current.delivered != resources
        return TryUpscale(current, resources, now_s) if is_due else None
