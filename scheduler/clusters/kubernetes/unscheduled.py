"""The pods that wait for one of our profiles to give them a node: a watch for each scheduler's name."""

import random
from collections.abc import Callable, Iterable, Mapping

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.core.known import Change, Changed
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import PODS, Manifest
from hosting.logs import Logger
from hosting.supervisor import Child
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.placing.cycle.scheduler import PodScheduler


class UnscheduledPods:
    """Tells a scheduler of pods without a node, and when they have one or are no more."""

    def __init__(
        self,
        api: KubernetesApi,
        view: PlacingView,
        scheduler: PodScheduler,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._view = view
        self._scheduler = scheduler
        self._clock, self._rng, self._log = clock, rng, log
        self._has_refused = False
        self._watches: dict[str, Reflector] = {}

    def follow(self, names: Iterable[str]) -> Mapping[str, Child]:
        """Watch the pods for these schedulers as well: the tasks that must run for those that are new.

        Pods are offered once more: those of a name that comes again were dropped while it was nobody's.
        """
        self._has_refused = True
        fresh = {name: self._watch(name) for name in names if name not in self._watches}
        self._watches |= fresh
        return {f"watch of pods for {name}": watch.run for name, watch in fresh.items()}

    def _watch(self, name: str) -> Reflector:
        return Reflector(
            self._api,
            PODS,
            field_selector=f"spec.nodeName=,spec.schedulerName={name}",
            clock=self._clock,
            rng=self._rng,
            log=self._log,
            on_change=self._changed,
        )

    def offer_again(self) -> None:
        """Tell once more of pods that were not taken, if there were any."""
        if not self._has_refused:
            return
        self._has_refused = False
        for watch in self._watches.values():
            for manifest in watch.objects().values():
                self._offer(manifest)

    def _changed(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, Changed) and _is_open(change.manifest):
                self._offer(change.manifest)
            else:
                self._scheduler.pod_gone(objects.uid(change.manifest))

    def _offer(self, manifest: Manifest) -> None:
        self._has_refused |= not self._scheduler.pod_seen(self._view.as_far_as_readable(manifest))


def _is_open(pod: Manifest) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" not in pod["metadata"] and phase not in {"Succeeded", "Failed"}
