"""Back ends that are broken on purpose, each with the clause of the suite that must catch it."""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from agent.backends.simulated import Moment, SentCommand, SimulatedBackend, VmFile
from agent.core.model import Vm
from agent.core.ports import BackendError, Capabilities, Fencing
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_simulated import PROFILES, Profile
from tests.support.amounts import cu


@dataclass(frozen=True, slots=True)
class BackendMutant:
    """A broken back end, the profile under which it is tried, and the clause that it breaks (others may break too)."""

    kind: type[SimulatedBackend]
    clause: str
    profile: str | tuple[float, Profile] = "with delay"

    def profiled(self) -> tuple[float, Profile]:
        return PROFILES[self.profile] if isinstance(self.profile, str) else self.profile


# ---------------------------------------------------------------- looks and targets


class ShowsNoTarget(SimulatedBackend):
    """Shows the size as the target, too."""

    async def observe(self, vm: Vm) -> Observation:
        seen = await super().observe(vm)
        return Observation(seen.size, seen.size, seen.begun_s)


class ShowsNoSize(SimulatedBackend):
    """Shows the target as the size, too."""

    async def observe(self, vm: Vm) -> Observation:
        seen = await super().observe(vm)
        return Observation(seen.target, seen.target, seen.begun_s)


class KeepsItsFirstLook(SimulatedBackend):
    """Answers from a cache."""

    async def observe(self, vm: Vm) -> Observation:
        kept = vars(self).setdefault("kept", {})
        if vm not in kept:
            kept[vm] = await super().observe(vm)
        seen: Observation = kept[vm]
        return Observation(seen.size, seen.target, self._clock.now_s())


class DatesLooksAtTheirEnd(SimulatedBackend):
    """Says that a look began when it ended."""

    async def observe(self, vm: Vm) -> Observation:
        seen = await super().observe(vm)
        return Observation(seen.size, seen.target, self._clock.now_s())


class ReturnsBeforeItIsAccepted(SimulatedBackend):
    """Puts a command on its way and returns."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **_: Any) -> None:
        if not target.is_positive():
            raise BackendError("nothing")
        known = self._check(vm, fencing)
        command = SentCommand(known.sent + 1, target, self._clock.now_s() + 0.5)
        self._write(vm, replace(known, sent=command.order, on_way=(*known.on_way, command)))


class ReturnsWhenItIsReached(SimulatedBackend):
    """Waits until the size is there."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await super().resize(vm, target, fencing, **condition)
        while self._settle(vm).agenda:
            await self._pause(0.1)


class HidesRefusals(SimulatedBackend):
    """Reports success whatever happened."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        try:
            await super().resize(vm, target, fencing, **condition)
        except BackendError as error:
            if "no resizes are taken" not in str(error):
                raise


class BeginsAnew(SimulatedBackend):
    """Begins the whole movement again with each repetition."""

    def _accepted(self, known: VmFile, order: int, target: Resources, at_s: float | None = None) -> VmFile:
        return super()._accepted(replace(known, wanted=cu(99)), order, target, at_s)


class LogsRepetitions(SimulatedBackend):
    """Writes a target down that has not changed."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await super().resize(vm, target, fencing, **condition)
        self._log.target(vm.name, target)


class Overshoots(SimulatedBackend):
    """Grows beyond its target for a moment."""

    def _moves(self, at_s: float, size: Resources, target: Resources) -> tuple[Moment, ...]:
        moves = super()._moves(at_s, size, target)
        return (Moment(at_s + self._delay_s / 2, size.max(target) + cu(1), target), *moves)


class FinishesInSecret(SimulatedBackend):
    """Finishes an earlier, larger target first and shows the new one."""

    def _finishing_first(self, known: VmFile, target: Resources) -> VmFile:
        after = super()._finishing_first(known, target)
        agenda = tuple(replace(each, target=target) for each in after.agenda)
        return replace(after, target=target, agenda=agenda)


class FailsHalfway(SimulatedBackend):
    """Sets half of the target and fails."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await super().resize(vm, target, fencing, **condition)
        if self._rng.random() < 0.5:
            half, stands = target.min(self._settle(vm).size) + cu(0.5), self._settle(vm).target
            await super().resize(vm, half, fencing, seen=stands, not_after_s=math.inf)
            raise BackendError("half of it")


# ---------------------------------------------------------------- conditions of a write


class WritesBlind(SimulatedBackend):
    """Does not look at what stands there."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        stands = self._settle(vm).target
        await super().resize(vm, target, fencing, **(condition | {"seen": stands}))


class ComparesTooEarly(SimulatedBackend):
    """Compares what stands there when it is called, not when it writes."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        if self._owned(vm, fencing).target not in (condition["seen"], target):
            raise BackendError("another target stands there")
        await self._pause(0.3)
        stands = self._settle(vm).target
        await super().resize(vm, target, fencing, **(condition | {"seen": stands}))


class RefusesARepetition(SimulatedBackend):
    """Takes its own target for somebody else's."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        if self._owned(vm, fencing).target != condition["seen"]:
            raise BackendError("another target stands there")
        await super().resize(vm, target, fencing, **condition)


class WritesLate(SimulatedBackend):
    """Has all the time in the world."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await super().resize(vm, target, fencing, **(condition | {"not_after_s": math.inf}))


class LooksAtTheClockTooEarly(SimulatedBackend):
    """Looks at the clock when it is called, not when it writes."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        if self._clock.now_s() > condition["not_after_s"]:
            raise BackendError("too late")
        await super().resize(vm, target, fencing, **(condition | {"not_after_s": math.inf}))


# ---------------------------------------------------------------- fences and lives


class KeepsTheGeneration(SimulatedBackend):
    """Gives everybody the same fencing."""

    async def fence(self, vm: Vm) -> Fencing:
        self._settle(vm)
        return Fencing(0)


class CountsForItself(SimulatedBackend):
    """Counts generations from one in every process."""

    async def fence(self, vm: Vm) -> Fencing:
        known, count = self._settle(vm), vars(self).get("count", 0) + 1
        vars(self)["count"] = count
        self._write(vm, replace(known, generation=count))
        return Fencing(count)


class TakesEverybodysCommands(SimulatedBackend):
    """Does not compare generations."""

    def _owned(self, vm: Vm, fencing: Fencing) -> VmFile:
        del fencing
        return self._settle(vm)


class HasNothingAgainstTheSameTarget(SimulatedBackend):
    """Takes the target that is there already from anybody."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        if self._settle(vm).wanted != target:
            await super().resize(vm, target, fencing, **condition)


class FencesWhatIsStartedOnly(SimulatedBackend):
    """Compares the generation when a command starts, not when it takes effect."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **_: Any) -> None:
        known = self._owned(vm, fencing)
        if not target.is_positive():
            raise BackendError("nothing")
        await self._pause(1.0)
        known = self._settle(vm)
        self._put(vm, known, self._accepted(replace(known, sent=known.sent + 1), known.sent + 1, target))


class ForgetsWhatIsOnItsWay(SimulatedBackend):
    """Fences without making void what was sent, and without waiting for it."""

    async def fence(self, vm: Vm) -> Fencing:
        known = self._settle(vm)
        self._write(vm, replace(known, generation=known.generation + 1))
        return Fencing(known.generation + 1)


class WaitsHalfTheDeadline(SimulatedBackend):
    """Waits, and not for long enough."""

    async def _wait_for_commands(self, vm: Vm, known: VmFile) -> None:
        del vm, known
        await self._pause(self._faults.command_deadline / 2)


class FenceStopsTheVm(SimulatedBackend):
    """Takes the target back with each fence."""

    async def fence(self, vm: Vm) -> Fencing:
        fencing = await super().fence(vm)
        known = self._settle(vm)
        self._put(vm, known, replace(known, target=known.size, wanted=known.size, agenda=()))
        return fencing


class UnderstatesItsDeadline(SimulatedBackend):
    """Says that commands die with their sender, and lets them travel."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(command_deadline_s=0.0)


class OutlivesItsSender(SimulatedBackend):
    """Goes on in a task of its own when its caller is cut off."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await asyncio.shield(asyncio.ensure_future(super().resize(vm, target, fencing, **condition)))


class ForgetsTargets(SimulatedBackend):
    """Takes every VM that it finds to be at rest."""

    def create(self, vm: Vm, size: Resources) -> None:
        super().create(vm, size)
        known = self._settle(vm)
        self._put(vm, known, replace(known, target=known.size, wanted=known.size, agenda=()))


class IsTornWhenItIsCutOff(SimulatedBackend):
    """Writes a file in two parts, with a wait between them."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        self._owned(vm, fencing)
        path = self._path(vm)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        await self._pause(0.2)
        path.write_bytes(whole)
        await super().resize(vm, target, fencing, **condition)


# ---------------------------------------------------------------- errors and capabilities


class TakesNothing(SimulatedBackend):
    """Takes any target."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **_: Any) -> None:
        known = self._check(vm, fencing)
        self._put(vm, known, self._accepted(known, known.accepted, target))


class RaisesWhatItLikes(SimulatedBackend):
    """Lets errors of the file system through."""

    def _read(self, vm: Vm) -> VmFile:
        self._path(vm).read_bytes()
        return super()._read(vm)


class MakesWhatIsAsked(SimulatedBackend):
    """Makes a VM that it does not know."""

    def _read(self, vm: Vm) -> VmFile:
        if not self._path(vm).exists():
            self.create(vm, cu(2))
        return super()._read(vm)


class ReplacesWhatItCannotRead(SimulatedBackend):
    """Takes a file that cannot be read for a new VM."""

    def _read(self, vm: Vm) -> VmFile:
        try:
            return super()._read(vm)
        except BackendError:
            if not self._path(vm).exists():
                raise
        return VmFile(0, cu(2), cu(2), cu(2), 0.0)


class ChangesItsMind(SimulatedBackend):
    """Has another deadline after each resize."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(command_deadline_s=float(sum(len(file.read_bytes()) for file in self._files())))

    def _files(self) -> list[Path]:
        return list(self._directory.glob("*.json"))

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        await super().resize(vm, target, fencing, **condition)
        (self._directory / "other.json").write_text("longer")


# ---------------------------------------------------------------- the change log


class LogsRaisesAfterTheFact(SimulatedBackend):
    """Logs everything after the fact."""

    def _put(self, vm: Vm, before: VmFile, after: VmFile) -> None:
        if after != before:
            self._write(vm, after)
            self._log.target(vm.name, after.target)
            self._log.size(vm.name, after.size)


class LogsLoweringsBeforeTheFact(SimulatedBackend):
    """Logs everything before the fact."""

    def _put(self, vm: Vm, before: VmFile, after: VmFile) -> None:
        if after != before:
            self._log.target(vm.name, after.target)
            self._log.size(vm.name, after.size)
            self._write(vm, after)


class LogsNoSizes(SimulatedBackend):
    """Logs targets only."""

    def _put(self, vm: Vm, before: VmFile, after: VmFile) -> None:
        sizeless: Any = replace(after, size=before.size)
        super()._put(vm, before, sizeless)
        self._write(vm, after)


_FENCED = "when_fence_returns_no_command_of_an_earlier_life_can_take_effect_any_more"
_REPLACED = "after_a_replacement_the_size_never_exceeds_the_size_and_the_new_target"
_ACCEPTED = "resize_returns_when_the_target_is_accepted_not_when_it_is_reached"
_DEADLINE = "after_the_command_deadline_a_command_can_no_longer_be_accepted"
_REFUSED = "commands_of_an_earlier_life_are_refused"
_LOGGED = "a_raise_is_logged_before_the_fact_and_a_lowering_after_it"
_UNREADABLE = "a_vm_that_cannot_be_read_is_an_error_of_the_back_end"
_SLOWLY_LATE: Final[tuple[float, Profile]] = (
    0.4,
    {"commandDeadline": 8, "late": 1, "latency": {"resize": 0.4}, "fence": "wait"},
)

MUTANTS: Final = (
    BackendMutant(ShowsNoTarget, "observe_returns_size_and_target"),
    BackendMutant(ShowsNoSize, "observe_returns_size_and_target", "memory in part"),
    BackendMutant(KeepsItsFirstLook, "what_is_observed_is_not_older_than_the_look"),
    BackendMutant(DatesLooksAtTheirEnd, "what_is_observed_is_not_older_than_the_look", "slow looks"),
    BackendMutant(ReturnsBeforeItIsAccepted, _ACCEPTED),
    BackendMutant(ReturnsWhenItIsReached, _ACCEPTED),
    BackendMutant(HidesRefusals, _ACCEPTED, "refusing"),
    BackendMutant(BeginsAnew, "repeating_a_resize_changes_nothing"),
    BackendMutant(LogsRepetitions, "repeating_a_resize_changes_nothing"),
    BackendMutant(Overshoots, "max_of_size_and_target_covers_what_the_vm_may_reach"),
    BackendMutant(FinishesInSecret, _REPLACED, "finish first"),
    BackendMutant(FailsHalfway, "a_resize_that_fails_takes_effect_whole_or_not_at_all"),
    BackendMutant(ComparesTooEarly, "of_two_writes_that_rest_on_one_look_at_most_one_succeeds"),
    BackendMutant(WritesBlind, "a_write_fails_where_another_target_stands_than_the_one_that_was_seen"),
    BackendMutant(RefusesARepetition, "a_repeated_write_finds_its_own_target"),
    BackendMutant(WritesLate, "a_write_is_never_late"),
    BackendMutant(LooksAtTheClockTooEarly, "a_write_is_never_late", "latency"),
    BackendMutant(KeepsTheGeneration, "a_fence_may_be_repeated"),
    BackendMutant(CountsForItself, "generations_outlive_the_agent"),
    BackendMutant(TakesEverybodysCommands, _REFUSED),
    BackendMutant(HasNothingAgainstTheSameTarget, _REFUSED),
    BackendMutant(FencesWhatIsStartedOnly, _FENCED),
    BackendMutant(ForgetsWhatIsOnItsWay, _FENCED, "late, fence makes void"),
    BackendMutant(WaitsHalfTheDeadline, _FENCED, "late, fence waits"),
    BackendMutant(FenceStopsTheVm, "a_fence_changes_neither_size_nor_target"),
    BackendMutant(UnderstatesItsDeadline, _DEADLINE, _SLOWLY_LATE),
    BackendMutant(OutlivesItsSender, _DEADLINE, "latency"),
    BackendMutant(ForgetsTargets, "targets_outlive_the_agent"),
    BackendMutant(IsTornWhenItIsCutOff, "a_call_that_is_cut_off_leaves_the_vm_whole"),
    BackendMutant(TakesNothing, "a_target_of_nothing_is_refused"),
    BackendMutant(RaisesWhatItLikes, "an_unknown_vm_is_an_error_of_the_back_end"),
    BackendMutant(MakesWhatIsAsked, "an_unknown_vm_is_an_error_of_the_back_end"),
    BackendMutant(ReplacesWhatItCannotRead, _UNREADABLE),
    BackendMutant(ChangesItsMind, "capabilities_never_change"),
    BackendMutant(LogsRaisesAfterTheFact, _LOGGED),
    BackendMutant(LogsLoweringsBeforeTheFact, _LOGGED),
    BackendMutant(LogsNoSizes, _LOGGED),
)
