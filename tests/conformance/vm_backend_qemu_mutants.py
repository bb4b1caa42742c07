"""Back ends of QEMU guests that are broken on purpose: profile, and the clause of the suite that must catch each."""

from dataclasses import replace
from typing import Any, Final

from msgspec.structs import replace as with_fields

from agent.backends.qemu.backend import QemuBackend
from agent.backends.qemu.core import report
from agent.core.model import Vm
from agent.core.ports import BackendError, Fencing
from protocol.values import Observation, Resources


class ShowsPlugged(QemuBackend):
    """Shows all vCPUs that are plugged in as the size, whatever the guest has online."""

    async def observe(self, vm: Vm) -> Observation:
        seen, known = await super().observe(vm), self._known(vm.name)
        assert known is not None
        return replace(seen, size=Resources(known.look.plugged_cpus * 1000, seen.size.memory_bytes))


class AnswersFromMemory(QemuBackend):
    """Answers with what its loop happened to know when it was called."""

    async def observe(self, vm: Vm) -> Observation:
        known = self._known(vm.name)
        if known is None:
            return await super().observe(vm)
        now_s = self._context.clock()
        return replace(report.observation(known, now_s), begun_s=now_s)


class SharesItsFence(QemuBackend):
    """Leaves the generation in the file as it is."""

    async def fence(self, vm: Vm) -> Fencing:
        await super().fence(vm)
        known = self._files.read(vm)
        assert known is not None
        self._files.write(vm, with_fields(known, generation=1))
        self._loops[vm.name].command(1)
        return Fencing(1)


class WritesWhateverStands(QemuBackend):
    """Takes what stands in the file for what was seen."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        known = self._files.owned(vm, fencing.generation)
        await super().resize(vm, target, fencing, **(condition | {"seen": known.target}))


class KeepsNoTarget(QemuBackend):
    """Takes each guest that it finds to be at rest."""

    async def fence(self, vm: Vm) -> Fencing:
        if (known := self._files.read(vm)) is not None and vm.name not in self._loops:
            self._files.write(vm, with_fields(known, target=None))
        return await super().fence(vm)


class CommandsForTheDead(QemuBackend):
    """Does not compare generations before it accepts a target, and does not care that its loop has ended."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        known = self._files.read(vm)
        assert known is not None
        if known.generation != fencing.generation:
            self._loops.pop(vm.name, None)
        await super().resize(vm, target, Fencing(known.generation), **condition)


class LogsTooLate(QemuBackend):
    """Writes a target down when it next looks, not before it stands."""

    async def resize(self, vm: Vm, target: Resources, fencing: Fencing, **condition: Any) -> None:
        sizes = self._context.sizes
        quiet = type("Quiet", (), {"commanding": lambda *_: None, "settled": lambda *_: None})()
        self._context = replace(self._context, sizes=quiet)
        try:
            await super().resize(vm, target, fencing, **condition)
        finally:
            self._context = replace(self._context, sizes=sizes)


class RaisesAnything(QemuBackend):
    """Lets through what is no error of a back end where the guest has gone."""

    async def observe(self, vm: Vm) -> Observation:
        try:
            return await super().observe(vm)
        except BackendError as error:
            raise RuntimeError(str(error)) from None


_FENCED: Final = "commands_of_an_earlier_life_are_refused"
_LOGGED: Final = "a_raise_is_logged_before_the_fact_and_a_lowering_after_it"

MUTANTS: Final[tuple[tuple[type[QemuBackend], str, str], ...]] = (
    (ShowsPlugged, "slow guest", "observe_returns_size_and_target"),
    (AnswersFromMemory, "latency", "what_is_observed_is_not_older_than_the_look"),
    (SharesItsFence, "slow guest", "generations_outlive_the_agent"),
    (
        WritesWhateverStands,
        "slow guest",
        "a_write_fails_where_another_target_stands_than_the_one_that_was_seen",
    ),
    (KeepsNoTarget, "slow guest", "targets_outlive_the_agent"),
    (CommandsForTheDead, "slow guest", _FENCED),
    (LogsTooLate, "slow guest", _LOGGED),
    (RaisesAnything, "slow guest", "a_vm_that_cannot_be_read_is_an_error_of_the_back_end"),
)
