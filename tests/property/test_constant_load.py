"""A constant load is followed once, and a need that it does not show is learnt in two tries: a runner and an informant together come to
rest, whatever caps the growth."""

import enum
import itertools
from dataclasses import dataclass
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.core import events
from agent.core.model import amounts
from agent.core.state import PermitRequest
from agent.core.timing import Timing
from informant.core.guard import GuardSettings
from informant.core.limits import Thresholds
from informant.core.sessions import NOTHING, Session, TryUpscale, Wishes
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources
from tests.support.amounts import UNIT
from tests.unit.agent.driver import FULL, VM, Driver, grant

LOOK_S = 0.5
LOOKS = 500
"""Four minutes: many times what a wish, its hold in the guest, the down window and a repetition of the wish take."""
QUIET = Timing(tick_s=30.0, hold_s=60.0)


class Cap(enum.Enum):
    """The limit that keeps the VM from growing further."""

    MAXIMUM = "the VM's own maximum"
    PERMIT = "the scheduler: the node, the pool or a quota is full"
    PIECEMEAL = "the scheduler, which permits a unit at a time until it is full"
    NODE = "the back end refuses more"


@dataclass(frozen=True, slots=True)
class Case:
    """A VM of `start`, capped at `most`, under a load that the policy wants `goal` for. The guest is short of whatever is below `need`."""

    cap: Cap
    unit: ComputeUnit
    start: Resources
    most: Resources
    goal: Resources
    need: Resources


class CappedDriver(Driver):
    def __init__(self, case: Case) -> None:
        bounds = Bounds(UNIT, case.most if case.cap is Cap.MAXIMUM else UNIT * 40)
        super().__init__(case.start, vm=replace(VM, unit=case.unit, bounds=bounds), timing=QUIET)
        self._case = case
        self.scheduler = self._capped
        self.load(case.goal.vcpu_milli / 1000)
        self.memory(case.goal.memory_bytes / UNIT.memory_bytes)

    def _capped(self, request: PermitRequest) -> events.Event:
        most, cap = self._case.most.max(request.in_use), self._case.cap
        if cap is Cap.PIECEMEAL:
            most = most.min(request.claim + UNIT)
        permit = request.resources.min(most) if cap in (Cap.PERMIT, Cap.PIECEMEAL) else request.resources
        return grant(request, permit, sent_s=self.now_s, reasons=FULL if permit != request.resources else ())

    def _outcome(self, action: events.Action) -> tuple[events.Event, ...]:
        most = self._case.most if self._case.cap is Cap.NODE else None
        if (
            most is not None
            and isinstance(action, events.Resize)
            and action.target.exceeds(most.max(action.seen))
        ):
            return (events.ResizeRefused("there is no room", 0.0),)
        return super()._outcome(action)


class ShortGuest:
    """The informant of that VM: it looks every half second, delivers its wishes at once, and holds what they brought for a while."""

    def __init__(self, need: Resources, driver: Driver) -> None:
        self._need = need
        self._driver = driver
        self._wishes = Wishes()
        self._size = driver.size
        self._delivered: MoreResources = NOTHING
        self._grown_s = driver.now_s, driver.now_s
        self._held_until_s = driver.now_s
        driver.guest = self._asked
        self._session = Session(UUID(int=1), "", InformantProtoVersion.V1_1, serial=1)

    def _asked(self, amount: Resources) -> events.Event:
        if self._driver.now_s < self._held_until_s:
            return events.DownscaleDenied(amount, "what a wish brought stays for a while")
        return events.DownscaleApproved(amount)

    def look(self) -> None:
        size, now_s = self._driver.size, self._driver.now_s
        grown = _more(size, self._size)
        if grown != NOTHING:
            self._wishes = self._wishes.arrived(grown)
            self._held_until_s = now_s + GuardSettings().hold_s
        cpu_s, memory_s = self._grown_s = (
            now_s if grown.cpu else self._grown_s[0],
            now_s if grown.memory else self._grown_s[1],
        )
        self._size, short, over_s = size, _more(self._need, size), Thresholds().cpu_over_s
        short = MoreResources(
            short.cpu and now_s >= cpu_s + over_s, short.memory and now_s >= memory_s + over_s
        )
        if short != NOTHING:
            self._wishes = self._wishes.seen_short(short, now_s)
        self._wishes = self._wishes.elapsed(now_s)
        wished = self._wishes.resources()
        is_news = any(
            each is not None and not each.delivered_to for each in (self._wishes.cpu, self._wishes.memory)
        )
        if is_news or wished != self._delivered:
            self._driver.try_upscale(cpu=wished.cpu, memory=wished.memory)
            self._wishes = self._wishes.delivered(TryUpscale(self._session, wished, now_s), now_s)
            self._delivered = wished


def _more(one: Resources, other: Resources) -> MoreResources:
    """The resources of which `one` has more."""
    cpu, memory = (more > less for more, less in zip(amounts(one), amounts(other), strict=True))
    return MoreResources(cpu, memory)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Growth that one wish brings, or less; a shrink of a unit; and a guest whose need shows in the load, or only in its wishes, or
    cannot be met."""
    unit = ComputeUnit(UNIT, is_apart=draw(st.booleans()))
    cap = draw(st.sampled_from(Cap))

    def resource(start: int) -> tuple[int, int, int]:
        reach = start + (-(-start // 2) if unit.is_apart else 1)
        most = draw(st.integers(start, reach))
        is_short_for_ever = draw(st.booleans())
        shown = int((most + 0.1) / 0.75)  # no load is more than the VM can have
        goal = draw(st.integers(start if is_short_for_ever else max(1, start - 1), max(start, shown)))
        return most, goal, 100 if is_short_for_ever else draw(st.integers(0, most))

    start = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    if not unit.is_apart:
        start = start[0], start[0]
    cpu, memory = map(resource, start)
    most, goal, need = (
        Resources(one * 1000, two * UNIT.memory_bytes) for one, two in zip(cpu, memory, strict=True)
    )
    return Case(cap, unit, Resources(start[0] * 1000, start[1] * UNIT.memory_bytes), most, goal, need)


def _changes(sizes: list[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(sizes) if after != before]


@settings(max_examples=40, deadline=None)
@given(_cases())
def test_a_constant_load_comes_to_rest(case: Case) -> None:
    """A load that shows the need resizes a resource twice at most. One that does not is tried with less once: what the guest misses
    then stays."""
    driver = CappedDriver(case)
    guest, sizes = ShortGuest(case.need, driver), [driver.size]
    for _ in range(LOOKS):
        guest.look()
        driver.wait(LOOK_S)
        sizes.append(driver.size)
    more = 2 if case.need.exceeds(case.goal) else 0
    for each in zip(*map(amounts, sizes), strict=True):
        changes = _changes(list(each))
        turns = [1 for before, after in itertools.pairwise(changes) if (before > 0) != (after > 0)]
        assert len(turns) <= 1 + more, (changes, case)
        assert case.cap is Cap.PIECEMEAL or len(changes) <= 2 + more, (changes, case)
    for each in zip(*map(amounts, sizes[-LOOKS // 3 :]), strict=True):
        assert _changes(list(each)) == [], case
