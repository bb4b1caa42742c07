"""Back ends of pods that are broken on purpose: profile, and the clause of the suite that must catch each."""

from typing import Final

from agent.backends.pod.backend import PodBackend
from agent.core.model import Vm
from agent.core.ports import Fencing
from hosting.kubernetes.resources import Manifest
from protocol.values import Resources


class WritesWithoutAVersion(PodBackend):
    """Lets the API server take a write whatever has changed since the reading."""

    def _patch(self, vm: Vm, pod: Manifest, target: Resources) -> Manifest:
        return {"spec": super()._patch(vm, pod, target)["spec"]}


class ForgetsWhatWasReplaced(PodBackend):
    """Believes that the node knows each spec as soon as it is written."""

    def _learn(self, vm: Vm, pod: Manifest, number: int) -> None:
        self._account(vm).known = None
        super()._learn(vm, pod, number)


class FencesForItself(PodBackend):
    """Counts generations and leaves the pod as it is marked."""

    async def fence(self, vm: Vm) -> Fencing:
        known = self._account(vm).known
        return await super().fence(vm) if known is None else Fencing(int(self.unix_clock()))


MUTANTS: Final[tuple[tuple[type[PodBackend], str, str], ...]] = (
    (
        WritesWithoutAVersion,
        "late",
        "when_fence_returns_no_command_of_an_earlier_life_can_take_effect_any_more",
    ),
    (ForgetsWhatWasReplaced, "slow node", "a_raise_is_logged_before_the_fact_and_a_lowering_after_it"),
    (FencesForItself, "with delay", "a_fence_may_be_repeated"),
)
