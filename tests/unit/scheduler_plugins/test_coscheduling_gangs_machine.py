"""Gangs beside a simple model of a scheduler: pods, turns, room, waits that end, bindings that fail, in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.wire import PodName
from scheduler.placing.plugins.coscheduling.core import GangMode, GangSpec, MatchPolicy
from scheduler.placing.plugins.coscheduling.gangs import GangEffects, GangPod, Gangs

STRICT, LAX = GangMode.STRICT, GangMode.NON_STRICT
GROUPS = {"a": ("a", "b"), "b": ("a", "b"), "c": ("c",), "d": ("d",), "e": ("e",)}
SPECS = {
    "a": GangSpec("a", 2, GROUPS["a"]),
    "b": GangSpec("b", 1, GROUPS["b"]),
    "c": GangSpec("c", 3, GROUPS["c"]),
    "d": GangSpec("d", 2, GROUPS["d"], mode=LAX),
    "e": GangSpec("e", 2, GROUPS["e"], match_policy=MatchPolicy.WAITING_AND_RUNNING),
}
WITH_OBJECT = frozenset("ce")
GANGS = st.sampled_from(sorted(SPECS))
NUMBERS = st.integers(0, 30)


class GangsMachine(RuleBasedStateMachine):
    """One cycle after the other; what waits and binds goes on beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.gangs = Gangs()
        self.count = 0
        self.room = 3
        self.pods: dict[str, str] = {}
        """The gang of each pod that is there."""
        self.parked: list[str] = []
        self.active: list[str] = []
        self.waiting: list[str] = []
        self.binding: list[str] = []
        self.leaving: list[str] = []
        self.bound: list[str] = []
        self.satisfied: set[tuple[str, ...]] = set()
        """The groups of which a member was bound once."""
        for gang in WITH_OBJECT:
            self.gangs.described(gang, SPECS[gang])

    # ------------------------------------------------------------ the scheduler

    def enter(self, uid: str) -> None:
        """The queue asks the gate for a pod that could have its turn."""
        for place in (self.parked, self.active):
            if uid in place:
                place.remove(uid)
        (self.parked if self.gangs.may_enter(uid) else self.active).append(uid)

    def perform(self, effects: GangEffects) -> None:
        for uid in effects.reject:
            assert uid in self.waiting
            self.waiting.remove(uid)
            self.leaving.append(uid)
        for uid in effects.wake:
            if uid in self.parked or uid in self.active:
                self.enter(uid)

    def fail(self, uid: str) -> None:
        self.perform(self.gangs.failed(uid, "no room"))
        if uid in self.pods:
            self.parked.append(uid)

    def give_up(self, uid: str) -> None:
        """The pod's room is given back, and the other pods of its group hear of it."""
        self.perform(self.gangs.given_up(uid))
        self.room += 1
        gang = self.pods.get(uid)
        for other in [each for each in self.parked if gang and self.pods[each] in GROUPS[gang]]:
            self.enter(other)
        self.fail(uid)

    def release(self, uids: tuple[str, ...], own: str) -> None:
        group = GROUPS[self.pods[own]]
        if group not in self.satisfied:
            for gang in group:
                held = [each for each in (*self.waiting, *self.binding, own) if self.pods[each] == gang]
                assert len(held) >= SPECS[gang].min_member, "a member was let go before all had room"
        for each in uids:
            if each != own:
                self.waiting.remove(each)
            self.binding.append(each)

    # ------------------------------------------------------------ what may happen

    @rule(gang=GANGS, is_queued_first=st.booleans())
    def a_pod_comes(self, gang: str, is_queued_first: bool) -> None:
        self.count += 1
        uid = f"{gang}{self.count}"
        self.pods[uid] = gang
        annotated = None if gang in WITH_OBJECT else SPECS[gang]
        if is_queued_first:
            self.enter(uid)
        self.perform(self.gangs.pod_seen(GangPod(uid, PodName(uid, "ns"), gang), annotated))
        if not is_queued_first:
            self.enter(uid)

    @precondition(lambda self: self.pods)
    @rule(number=NUMBERS)
    def a_pod_is_deleted(self, number: int) -> None:
        uid = sorted(self.pods)[number % len(self.pods)]
        self.perform(self.gangs.pod_gone(uid))
        for place in (self.parked, self.active):
            if uid in place:
                place.remove(uid)
        if uid in self.bound:
            self.bound.remove(uid)
            self.room += 1
        elif uid in (*self.waiting, *self.binding, *self.leaving):
            for place in (self.waiting, self.binding, self.leaving):
                if uid in place:
                    place.remove(uid)
            self.give_up(uid)
        del self.pods[uid]
        if uid in self.parked:
            self.parked.remove(uid)

    @rule()
    def a_turn(self) -> None:
        self.cycle()

    def cycle(self) -> bool:
        """Whether anybody had a turn."""
        uid, effects = self.gangs.next()
        self.perform(effects)
        if uid is None or not (uid in self.parked or uid in self.active):
            if not self.active:
                return False
            uid = self.active[0]
        (self.parked if uid in self.parked else self.active).remove(uid)
        if self.gangs.begins(uid) or not self.room:
            self.fail(uid)
            return True
        self.room -= 1
        self.gangs.assumed(uid)
        permit = self.gangs.permit(uid)
        if permit.refusal:
            self.give_up(uid)
        elif permit.wait_s is not None:
            self.waiting.append(uid)
        else:
            self.release(permit.release, uid)
            self.perform(permit.effects)
        return True

    @precondition(lambda self: self.waiting)
    @rule(number=NUMBERS)
    def time_is_over(self, number: int) -> None:
        self.give_up(self.waiting.pop(number % len(self.waiting)))

    @precondition(lambda self: self.leaving)
    @rule(number=NUMBERS)
    def room_is_given_back(self, number: int) -> None:
        self.give_up(self.leaving.pop(number % len(self.leaving)))

    @precondition(lambda self: self.binding)
    @rule(number=NUMBERS, is_bound=st.booleans())
    def a_binding_ends(self, number: int, is_bound: bool) -> None:
        uid = self.binding.pop(number % len(self.binding))
        if is_bound:
            self.bound.append(uid)
            self.satisfied.add(GROUPS[self.pods[uid]])
            self.perform(self.gangs.bound(uid))
        else:
            self.give_up(uid)

    @rule(number=NUMBERS)
    def an_event_wakes_a_pod(self, number: int) -> None:
        if self.parked:
            self.enter(self.parked[number % len(self.parked)])

    @rule()
    def a_node_comes(self) -> None:
        self.room += 1

    # ------------------------------------------------------------ what must hold

    @invariant()
    def the_gangs_know_where_everybody_is(self) -> None:
        states = {
            name: state
            for gang in SPECS
            for name, state in ((self.gangs.shown(gang) or {}).get("pods", {})).items()
        }
        places = {
            "pending": (*self.parked, *self.active),
            "assumed": (*self.waiting, *self.binding),
            "leaving": self.leaving,
            "bound": self.bound,
        }
        assert states == {uid: state for state, uids in places.items() for uid in uids}

    @invariant()
    def one_pod_stands_for_a_group(self) -> None:
        for group in set(GROUPS.values()) - self.satisfied:
            assert sum(self.pods[uid] in group for uid in self.active) <= 1

    def teardown(self) -> None:
        """With room for everybody, every gang that has its pods is bound in the end; and of gangs that are gone nothing is kept."""
        self.room += 1000
        for _ in range(5):
            for uid in tuple(self.parked):
                if uid in self.parked:
                    self.enter(uid)
            while self.cycle() or self.gangs.round_of():
                pass
            while self.leaving:
                self.room_is_given_back(0)
            while self.binding:
                self.a_binding_ends(0, is_bound=True)
            while self.waiting:
                self.time_is_over(0)
        for group in set(GROUPS.values()):
            counts = {gang: sum(each == gang for each in self.pods.values()) for gang in group}
            if all(counts[gang] >= SPECS[gang].min_member for gang in group):
                assert all(uid in self.bound for uid, gang in self.pods.items() if gang in group)
        for uid in sorted(self.pods):
            self.a_pod_is_deleted(sorted(self.pods).index(uid))
        for gang in WITH_OBJECT:
            self.gangs.described(gang, None)
        assert len(self.gangs) == 0


TestGangs = GangsMachine.TestCase
TestGangs.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
