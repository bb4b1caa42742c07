"""The label of the scheduler that leads: the Service selects it, and published agents look for the scheduler's name.

The leader sets it on its own pod, and takes it off every other one: a process that is paused cannot do that itself. A published agent
whose first request has failed asks again only when the label comes anew, so one that was left behind is taken off first.
"""

import random
from asyncio import sleep
from collections.abc import Callable, Mapping
from typing import Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import names, objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import PODS
from hosting.logs import Logger
from scheduler.ports import ClusterUnreachableError

PUBLISHED_NAME: Final = "name"
"""The label by which published agents find their scheduler. Source: reference/neon.md 3.8."""
RETRY: Final = Backoff(base_s=0.5, cap_s=10.0)
REMOVAL_DEADLINE_S: Final = 2.0
LOOK_S: Final = 15.0
"""The leader looks again after this time, or at most twice this time, where the label is."""


class LeaderLabel:
    """The label on the pod `namespace`/`name`; with `scheduler_name`, the published one beside it."""

    def __init__(
        self,
        api: KubernetesApi,
        pod: tuple[str, str],
        scheduler_name: str | None,
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._namespace, self._name = pod
        self._labels = {names.ROLE: names.LEADER}
        if scheduler_name is not None:
            self._labels[PUBLISHED_NAME] = scheduler_name
        self._rng = rng
        self._log = log
        self._faults = FaultLog(log, "the leader's label cannot be set", "the leader's label is set")

    async def keep(self, leads: Callable[[], bool]) -> None:
        """Keep the label on this pod and on no other, for ever. `leads` says whether this process still may.

        A label that was right once is looked at again: a removal that was given up may be carried out later.
        """
        failures, is_anew = 0, True
        while True:
            try:
                await self._put(leads, is_anew=is_anew)
            except KubernetesError as error:
                failures += 1
                self._faults.failed(error)
                await sleep(RETRY.delay_s(failures, self._rng.random()))
            else:
                failures, is_anew = 0, False
                self._faults.worked()
                await sleep(LOOK_S * (1 + self._rng.random()))

    async def clear(self) -> None:
        """Take off what an earlier process has left on this pod. Raises `ClusterUnreachableError` if that is not known to be done; if
        it is not allowed, the label could not be set either."""
        try:
            await self._patch(self._name, dict.fromkeys(self._labels))
        except RefusedError as error:
            if error.status not in {403, 404}:
                raise ClusterUnreachableError(str(error)) from None
            self._log.warning("the leader's label cannot be taken off this pod", error=str(error))
        except KubernetesError as error:
            raise ClusterUnreachableError(str(error)) from None

    async def remove(self) -> None:
        """Take the label off this pod, if the API server can be asked; else the next leader does."""
        try:
            await self._patch(self._name, dict.fromkeys(self._labels), deadline_s=REMOVAL_DEADLINE_S)
        except KubernetesError as error:
            self._log.warning("the leader's label stays on a pod that does not lead", error=str(error))

    async def _put(self, leads: Callable[[], bool], *, is_anew: bool) -> None:
        """Label this pod, and then no other, if that is not so; anew if the label is from before this process led. Raises
        `KubernetesError`."""
        listed = await self._api.list(
            PODS, self._namespace, query={"labelSelector": f"{names.ROLE}={names.LEADER}"}
        )
        labelled = {objects.name(pod): objects.labels(pod) for pod in listed["items"]}
        own = labelled.pop(self._name, {})
        if own and is_anew and leads():
            await self._patch(self._name, dict.fromkeys(self._labels))
            own = {}
        if leads() and any(own.get(name) != text for name, text in self._labels.items()):
            await self._patch(self._name, self._labels)
        for name in labelled:
            if not leads():
                return
            await self._patch(name, dict.fromkeys(self._labels))
            self._log.info("the leader's label is taken off another pod", pod=name)

    async def _patch(self, name: str, labels: Mapping[str, str | None], *, deadline_s: float = 5.0) -> None:
        body = {"metadata": {"labels": labels}}
        await self._api.patch(PODS, self._namespace, name, body, deadline_s=deadline_s)
