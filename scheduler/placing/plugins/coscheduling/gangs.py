"""The members of gangs, and who may go on: one gang group at a time is placed, all of its members one after the other.

A group is the gangs that are satisfied together. Of a group whose gangs all have enough members one pod, its *representative*, may wait for
its turn. With its cycle the group's *round* begins: every other member is handed out next, before any other pod has a turn. So two groups
never hold room for each other's members. The round ends when the group is satisfied, or when everybody was tried.

A member is `PENDING`, then `ASSUMED` from Reserve on, and `BOUND` in the end. Members that are given up while they wait are `LEAVING` until
what is kept for them is given back. Nothing here waits or calls anybody: what follows from an input is its `GangEffects`.
"""

import enum
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins.coscheduling.core import GangMode, GangSpec, MatchPolicy

UNKNOWN: Final = "the pod and its gang are not known yet"


class MemberState(enum.StrEnum):
    """The state of a pod of a gang."""

    PENDING = "pending"
    ASSUMED = "assumed"
    LEAVING = "leaving"
    BOUND = "bound"


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod of a gang as the cluster shows it. `has_ended`: it runs no more, or has no node and is being deleted; a pod that `is_held` has
    scheduling gates."""

    uid: str
    pod: PodName
    gang: str
    priority: int = 0
    has_node: bool = False
    has_ended: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class GangEffects:
    """Who is to be given up while it waits, and why; and who is to be given its turn, as far as the queue's gate lets it."""

    reject: tuple[str, ...] = ()
    why: str = ""
    wake: tuple[str, ...] = ()

    def __add__(self, other: "GangEffects") -> "GangEffects":
        return GangEffects(self.reject + other.reject, self.why or other.why, self.wake + other.wake)


NO_EFFECTS: Final = GangEffects()


@dataclass(frozen=True, slots=True)
class GangPermit:
    """The word on a member that was assumed: it goes on with `release`, waits for `wait_s`, or is refused with `refusal`."""

    wait_s: float | None = None
    refusal: str = ""
    release: tuple[str, ...] = ()
    effects: GangEffects = NO_EFFECTS


@dataclass(slots=True)
class _GangMember:
    pod: GangPod
    state: MemberState = MemberState.PENDING
    is_queued: bool = False
    """Whether the queue has shown it. Others are not handed out."""
    is_released: bool = False
    """Whether it was let go: it waits for its gang no more."""
    binding: tuple[str, int] | None = None
    """The group that it is bound with, and how many are, where that is more than one."""


@dataclass(slots=True)
class _GangGroup:
    is_satisfied: bool = False
    """Whether a member was bound once. Never taken back."""
    representative: str | None = None


@dataclass(slots=True)
class _GangRound:
    group: tuple[str, ...]
    tried: set[str]
    failure: str = ""
    postponed: set[str] = field(default_factory=set)
    """Pods of other groups whose turn came meanwhile."""


class Gangs:
    """All gangs of a scheduler, and the one owner of their state. A pod is named by its UID."""

    def __init__(self) -> None:
        self._described: dict[str, GangSpec] = {}
        """By PodGroups; kept while these are there."""
        self._annotated: dict[str, GangSpec] = {}
        """By the first pod that does it well; kept while there are pods of the gang."""
        self._members: dict[str, _GangMember] = {}
        self._of: dict[str, dict[str, _GangMember]] = {}
        """By gang and UID."""
        self._groups: dict[tuple[str, ...], _GangGroup] = {}
        self._round: _GangRound | None = None
        self.is_asked = False
        """Whether anybody has asked whose turn it is."""

    # ------------------------------------------------------------ what is known

    def spec(self, gang: str) -> GangSpec | None:
        return self._described.get(gang) or self._annotated.get(gang)

    def gangs(self) -> Collection[str]:
        """The gangs that have pods or a PodGroup."""
        return self._of.keys() | self._described.keys()

    def uids(self) -> AbstractSet[str]:
        return self._members.keys()

    def info(self, uid: str) -> PodInfo:
        """A member as the queue takes it. Raises `KeyError` for a pod that is no member."""
        return PodInfo(self._members[uid].pod.pod, uid)

    def binding_of(self, uid: str) -> tuple[str, int] | None:
        """The id of the group with which a pod is bound, and how many pods are; None for a pod that is bound alone."""
        return self._members[uid].binding if uid in self._members else None

    def round_of(self) -> tuple[str, ...]:
        """The group whose round goes on; empty between two rounds."""
        return self._round.group if self._round is not None else ()

    def shown(self, gang: str) -> dict[str, Any] | None:
        """A gang as its page shows it; None where there is none."""
        if gang not in self.gangs():
            return None
        spec, members = self.spec(gang), self._of.get(gang, {}).values()
        found: dict[str, Any] = {
            "gang": gang,
            "pods": {each.pod.pod.name: str(each.state) for each in members},
        }
        if spec is not None:
            group = self._groups.get(spec.group)
            found |= {
                "group": list(spec.group),
                "minMember": spec.min_member,
                "mode": str(spec.mode),
                "matchPolicy": str(spec.match_policy),
                "waitSeconds": spec.wait_s,
                "onceSatisfied": group is not None and group.is_satisfied,
                "isPlacedNow": self._round_of(spec) is not None,
            }
        return found

    def __len__(self) -> int:
        """How much is kept: members, descriptions and groups."""
        return len(self._members) + len(self._described) + len(self._annotated) + len(self._groups)

    # ------------------------------------------------------------ the cluster

    def described(self, gang: str, spec: GangSpec | None) -> GangEffects:
        """The gang's PodGroup is there, or was changed; None: it is not, or nobody can read it."""
        before = self.spec(gang)
        if spec is not None:
            self._described[gang] = spec
        else:
            self._described.pop(gang, None)
        after = self.spec(gang)
        if before == after:
            return NO_EFFECTS
        effects = NO_EFFECTS
        if before is not None and (after is None or after.group != before.group):
            effects = self._give_up(before.group, f"gang {gang} was changed while its pods waited")
            self._keep_groups()
        self._adopt(gang)
        return effects + GangEffects(wake=self._pending(after.group if after is not None else (gang,)))

    def pod_seen(self, pod: GangPod, annotated: GangSpec | None) -> GangEffects:
        """A pod is there, or was changed. `annotated` is how it describes its gang, if it does."""
        if pod.has_ended and not pod.has_node:
            return self.pod_gone(pod.uid)
        member = self._members.get(pod.uid)
        effects = self.pod_gone(pod.uid) if member is not None and member.pod.gang != pod.gang else NO_EFFECTS
        is_new = pod.uid not in self._members
        member = self._members.setdefault(pod.uid, _GangMember(pod))
        self._of.setdefault(pod.gang, {})[pod.uid] = member
        may_go = is_new or (member.pod.is_held and not pod.is_held)
        member.pod = pod
        if annotated is not None:
            self._annotated.setdefault(pod.gang, annotated)
        self._adopt(pod.gang)
        if pod.has_node:
            return effects + self.bound(pod.uid)
        return effects + GangEffects(wake=(pod.uid,) if may_go and not pod.is_held else ())

    def pod_gone(self, uid: str) -> GangEffects:
        """A pod is there no more. If it was waited for, the others are given up as if it had failed."""
        member = self._members.get(uid)
        if member is None:
            return NO_EFFECTS
        gang = member.pod.gang
        spec, effects = self.spec(gang), NO_EFFECTS
        if spec is not None and member.state is MemberState.ASSUMED and not member.is_released:
            effects = self._member_failed(spec, f"pod {member.pod.pod.name} of the gang is gone")
        del self._members[uid]
        del self._of[gang][uid]
        if not self._of[gang]:
            del self._of[gang]
            self._annotated.pop(gang, None)
        if spec is not None:
            group = self._groups.get(spec.group)
            if group is not None and group.representative == uid:
                group.representative = None
                effects += GangEffects(wake=self._pending(spec.group))
        self._keep_groups()
        return effects

    # ------------------------------------------------------------ turns

    def may_enter(self, uid: str) -> str | None:
        """Why a pod may not wait for its turn; None where it may, as one of a satisfied gang or as the representative of its group."""
        member, spec = self._found(uid)
        if member is None:
            return UNKNOWN
        member.is_queued = True
        if spec is None:
            return f"gang {member.pod.gang} is not described yet"
        if self._goes_alone(spec):
            return None
        lacking = self._lacking(spec)
        if lacking is not None:
            return lacking
        group = self._groups[spec.group]
        round_ = self._round_of(spec)
        if round_ is not None and uid not in round_.tried:
            return f"the pods of gang {spec.gang} have their turns one after the other"
        if group.representative not in {None, uid}:
            return f"another pod waits for the turn of gang {spec.gang}"
        group.representative = uid
        return None

    def next(self) -> tuple[str | None, GangEffects]:
        """The member whose turn it is. After the last one the round ends, and whoever waits in vain is given up."""
        self.is_asked = True
        if self._round is None:
            return None, NO_EFFECTS
        untried = [each for each in self._pending(self._round.group) if each not in self._round.tried]
        if untried:
            self._round.tried.add(untried[0])
            return untried[0], NO_EFFECTS
        group, effects = self._round.group, NO_EFFECTS
        if self._is_strict(group) and not self._round.failure:
            effects = self._give_up(group, "not all pods that the gang needs found a node")
        return None, effects + self._end_round()

    def begins(self, uid: str) -> str | None:
        """The cycle of a pod begins. Why it must not go on; None where it may, and its group's round goes on or begins."""
        member, spec = self._found(uid)
        if member is None or spec is None:
            return UNKNOWN if member is None else f"gang {member.pod.gang} is not described yet"
        group = self._groups[spec.group]
        if group.representative == uid:
            group.representative = None
        if self._goes_alone(spec):
            return None
        if self._round is not None and self._round.group != spec.group:
            self._round.postponed.add(uid)
            return f"the gangs {', '.join(self._round.group)} are placed first"
        if self._round is None:
            lacking = self._lacking(spec)
            if lacking is not None:
                return lacking
            self._round = _GangRound(spec.group, set())
        self._round.tried.add(uid)
        return self._round.failure or None

    def failed(self, uid: str, message: str) -> GangEffects:
        """A pod whose cycle began has found no node. Strict: nobody else of the group needs one now."""
        member, spec = self._found(uid)
        if member is None or spec is None:
            return NO_EFFECTS
        group, round_ = self._groups[spec.group], self._round_of(spec)
        if group.representative == uid:  # its cycle ended before it `begins`: nobody can read what it needs
            group.representative = None
        if member.state is not MemberState.PENDING or round_ is None or round_.failure:
            return NO_EFFECTS
        return self._member_failed(spec, f"pod {member.pod.pod.name} of the gang found no node: {message}")

    # ------------------------------------------------------------ from Reserve on

    def assumed(self, uid: str) -> None:
        """Room is kept for a pod."""
        member = self._members.get(uid)
        if member is not None and member.state is MemberState.PENDING:
            member.state = MemberState.ASSUMED

    def permit(self, uid: str) -> GangPermit:
        """Whether a pod that was assumed may go on, and with whom."""
        member, spec = self._found(uid)
        if member is None or spec is None or member.state is not MemberState.ASSUMED:
            return GangPermit(refusal="the gang was given up meanwhile")
        round_ = self._round_of(spec)
        if round_ is not None and round_.failure:
            return GangPermit(refusal=round_.failure)
        if not all(self._is_valid(gang) for gang in spec.group):
            return GangPermit(wait_s=spec.wait_s)
        together = [each for each in self._in_group(spec.group) if self._waits(each)]
        for each in together:
            each.is_released = True
            each.binding = (spec.group_id, len(together)) if len(together) > 1 else None
        effects = NO_EFFECTS
        if round_ is not None:
            effects = self._end_round() + GangEffects(wake=self._pending(spec.group))
        return GangPermit(release=tuple(each.pod.uid for each in together), effects=effects)

    def given_up(self, uid: str) -> GangEffects:
        """What was kept for a pod is given back. Strict: those that wait for it are given up as well, until a member was bound once."""
        member, spec = self._found(uid)
        if member is None or member.state not in {MemberState.ASSUMED, MemberState.LEAVING}:
            return NO_EFFECTS
        has_left = member.state is MemberState.ASSUMED and not member.is_released
        member.state, member.is_released, member.binding = MemberState.PENDING, False, None
        if spec is None or not has_left or self._groups[spec.group].is_satisfied:
            return NO_EFFECTS
        return self._member_failed(spec, f"pod {member.pod.pod.name} of the gang was given up")

    def bound(self, uid: str) -> GangEffects:
        """A pod is bound. With the first one the group is satisfied for ever."""
        member, spec = self._found(uid)
        if member is None:
            return NO_EFFECTS
        member.state, member.is_released = MemberState.BOUND, True
        group = self._groups.get(spec.group) if spec is not None else None
        if spec is None or group is None or group.is_satisfied:
            return NO_EFFECTS
        group.is_satisfied = True
        return GangEffects(wake=self._pending(spec.group))

    # ------------------------------------------------------------ parts

    def _found(self, uid: str) -> tuple[_GangMember | None, GangSpec | None]:
        member = self._members.get(uid)
        return member, self.spec(member.pod.gang) if member is not None else None

    def _round_of(self, spec: GangSpec) -> _GangRound | None:
        """The round that goes on, if it is that of the gang's group."""
        return self._round if self._round is not None and self._round.group == spec.group else None

    def _in_group(self, group: Iterable[str]) -> Iterator[_GangMember]:
        return (member for gang in group for member in self._of.get(gang, {}).values())

    def _pending(self, group: Iterable[str]) -> tuple[str, ...]:
        """The members of a group that can be handed out, gang by gang, the higher priority first."""
        found = [
            member
            for member in self._in_group(group)
            if member.state is MemberState.PENDING and member.is_queued and not member.pod.is_held
        ]
        found.sort(key=lambda member: (member.pod.gang, -member.pod.priority, member.pod.pod.name))
        return tuple(member.pod.uid for member in found)

    def _lacking(self, spec: GangSpec) -> str | None:
        """Why the group's turn cannot come."""
        for gang in spec.group:
            described = self.spec(gang)
            if described is None:
                return f"gang {gang}, which is placed together with {spec.gang}, is not described yet"
            members = self._of.get(gang, {}).values()
            if any(each.state is MemberState.LEAVING for each in members):
                return f"pods of gang {gang} have not given their room back yet"
            ready = sum(self._is_ready(each) for each in members)
            if ready < described.min_member:
                return f"gang {gang} has {ready} of the {described.min_member} pods that it needs"
        return None

    def _is_ready(self, member: _GangMember) -> bool:
        if member.pod.has_ended:
            return False
        return member.state is not MemberState.PENDING or (member.is_queued and not member.pod.is_held)

    def _is_valid(self, gang: str) -> bool:
        """Whether so many members of a gang are assumed, or bound, as its match policy wants."""
        spec = self.spec(gang)
        if spec is None:
            return False
        group = self._groups.get(
            spec.group
        )  # not kept of a gang without pods, which other gangs may name all the same
        states = [each.state for each in self._of.get(gang, {}).values() if not each.pod.has_ended]
        count = states.count(MemberState.ASSUMED)
        match spec.match_policy:
            case MatchPolicy.ONLY_WAITING:
                return count >= spec.min_member
            case MatchPolicy.WAITING_AND_RUNNING:
                return count + states.count(MemberState.BOUND) >= spec.min_member
            case MatchPolicy.ONCE_SATISFIED:
                return count >= spec.min_member or (group is not None and group.is_satisfied)

    def _goes_alone(self, spec: GangSpec) -> bool:
        """Whether members are like pods of no gang: the group was satisfied once, and each of its gangs needs no more."""
        specs = [self.spec(gang) for gang in spec.group]
        return self._groups[spec.group].is_satisfied and all(
            each is not None and each.match_policy is MatchPolicy.ONCE_SATISFIED for each in specs
        )

    def _is_strict(self, group: Iterable[str]) -> bool:
        specs = (self.spec(gang) for gang in group)
        return any(spec is not None and spec.mode is GangMode.STRICT for spec in specs)

    @staticmethod
    def _waits(member: _GangMember) -> bool:
        return member.state is MemberState.ASSUMED and not member.is_released

    def _member_failed(self, spec: GangSpec, text: str) -> GangEffects:
        return self._give_up(spec.group, text) if spec.mode is GangMode.STRICT else NO_EFFECTS

    def _give_up(self, group: tuple[str, ...], text: str) -> GangEffects:
        """Whoever of the group waits is given up, and the rest of its round has nothing to hope for."""
        if self._round is not None and self._round.group == group:
            self._round.failure = self._round.failure or text
        waiting = [each for each in self._in_group(group) if self._waits(each)]
        for each in waiting:
            each.state = MemberState.LEAVING
        return GangEffects(tuple(each.pod.uid for each in waiting), text)

    def _end_round(self) -> GangEffects:
        postponed = self._round.postponed if self._round is not None else set[str]()
        self._round = None
        return GangEffects(wake=tuple(sorted(postponed & self._members.keys())))

    def _adopt(self, gang: str) -> None:
        """The gang's group, if its description is known. After a restart the pods that are bound say that it was satisfied."""
        spec = self.spec(gang)
        if spec is None or gang not in self._of:
            return
        group = self._groups.setdefault(spec.group, _GangGroup())
        if not group.is_satisfied:
            members = self._in_group(spec.group)
            group.is_satisfied = any(each.state is MemberState.BOUND for each in members)

    def _keep_groups(self) -> None:
        """Only those of gangs that have pods."""
        kept = {spec.group for gang in self._of if (spec := self.spec(gang)) is not None}
        self._groups = {group: each for group, each in self._groups.items() if group in kept}
        if self._round is not None and self._round.group not in kept:
            self._round = None
