"""What follows from the account of quotas: status and annotations of their objects, pods that are asked to shrink, and evictions.

Source: reference/koordinator.md 2.4, controllers.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from hosting import logs
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.errors import KubernetesError
from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO, Resources
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.informers import Informer
from scheduler.placing.core.objects import NodeSnapshot
from scheduler.placing.plugins.elastic_quota.args import ElasticQuotaArgs
from scheduler.placing.plugins.elastic_quota.core import annotations_of, status_of
from scheduler.placing.plugins.elastic_quota.reading import WRITTEN
from scheduler.quotas.admission import QuotaAccount, overused, overused_since, to_revoke
from scheduler.quotas.faults import QuotaKey
from scheduler.quotas.values import BUILT_IN, NONE, QuotaFault, QuotaPod

STATUS_S: Final = 1.0
"""Between two looks at the status of all quotas."""
INTERVAL_S: Final = 5.0
"""Between two writes to one object."""
MAX_ASKED: Final = 1000
"""Pods of one quota that are asked to shrink in one look, the least important ones."""
MAX_WRITES: Final = 20
"""Objects that are written in one look."""


class NewestNodes:
    """The newest nodes that a cycle of any profile, or a controller, has looked at. One cycle may be later than another, and show
    earlier nodes."""

    def __init__(self) -> None:
        self.snapshot = NodeSnapshot(generation=-1)


class QuotaWriter:
    """Writes to the API server, if there is one. A failure is logged, and tried again at the next look."""

    def __init__(
        self,
        args: ElasticQuotaArgs,
        handle: ExtendedHandle,
        quotas: Informer,
        account: Callable[[], QuotaAccount],
        pods_of: Callable[[str], tuple[QuotaPod, ...]],
        faults: Callable[[QuotaAccount], Mapping[QuotaKey, tuple[QuotaFault, ...]]],
    ) -> None:
        """`pods_of` a quota itself, not of those below it; `faults` of each object that has any."""
        self._args, self._handle, self._quotas = args, handle, quotas
        self._account, self._pods_of, self._faults = account, pods_of, faults
        self._rng, self._log = random.Random(), logs.logger("elastic-quota")
        self._written_s: dict[QuotaKey, float] = {}
        self._over_since: dict[str, float] = {}
        self._writes = FaultLog(self._log, "elastic quota not written", "elastic quota written")
        self._evictions = FaultLog(self._log, "pod of an elastic quota not evicted", "pod evicted")

    async def keep_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S * (0.75 + self._rng.random() / 2))
            await self.write_statuses()

    async def keep_revoking(self) -> None:
        """Evict from quotas that use more than they may for longer than `delayEvictTime`."""
        self._over_since = {}
        while True:
            await asyncio.sleep(max(self._args.revoke_pod_interval, 0.1))
            await self.revoke()

    async def keep_asking_back(self) -> None:
        """Have those asked to shrink whose quota uses more than it may."""
        while True:
            await asyncio.sleep(STATUS_S * (0.75 + self._rng.random() / 2))
            self.ask_back()

    def ask_back(self) -> None:
        """One look. A quota before those above it, which count what was asked for already."""
        account = self._account()
        for name in reversed([each for each in account.tree.from_above if each not in BUILT_IN]):
            over = account.excess(name)
            excess = Resources(over.get("cpu", 0), over.get("memory", 0))
            if excess != ZERO:
                pods = sorted(self._pods_below(account, name), key=lambda pod: pod.importance)
                self._handle.placements.ask_back(name, excess, [pod.uid for pod in pods[:MAX_ASKED]])

    def _pods_below(self, account: QuotaAccount, name: str) -> Iterator[QuotaPod]:
        yield from self._pods_of(name)
        for child in account.tree.children(name):
            yield from self._pods_below(account, child)

    async def write_statuses(self) -> None:
        """One look: bring status and annotations of objects in line that were not written just now."""
        account, now_s = self._account(), self._handle.now_s()
        faults, writes = self._faults(account), 0
        for key, manifest in sorted(self._quotas.objects().items()):
            if now_s < self._written_s.get(key, -math.inf) + INTERVAL_S or writes == MAX_WRITES:
                continue
            status, annotations = _wanted(account, manifest, faults.get(key, ()))
            if status or annotations:
                writes += 1
                self._written_s[key] = now_s
                await self._write(key, status, annotations)
        here = self._quotas.objects().keys()
        self._written_s = {key: at_s for key, at_s in self._written_s.items() if key in here}
        self._writes.forget_all_but(["/".join(key) for key in here])

    async def _write(
        self, key: QuotaKey, status: Mapping[str, object], annotations: Mapping[str, str]
    ) -> None:
        api: KubernetesApi | None = self._handle.client_set()
        if api is None:
            return
        about = "/".join(key)
        try:
            if annotations:
                body = {"metadata": {"annotations": annotations}}
                await api.patch(ELASTIC_QUOTAS, key[0], key[1], body)
            if status:
                await api.patch(ELASTIC_QUOTAS, key[0], key[1], {"status": status}, subresource="status")
        except KubernetesError as error:
            self._writes.failed(error, about, object=about)
        else:
            self._writes.worked(about, object=about)

    async def revoke(self) -> None:
        """One look for quotas that use too much."""
        now_s, account = self._handle.now_s(), self._account()
        names = [name for name in account.tree.from_above if name not in BUILT_IN]
        self._over_since = overused_since(self._over_since, overused(account, names), now_s)
        for name, since_s in sorted(self._over_since.items()):
            if now_s - since_s > self._args.delay_evict_time:
                pods = to_revoke(self._pods_of(name), account.used.get(name, NONE), account.limit(name))
                await self.evict(pods, f"quota {name} uses more than its runtime")

    async def evict(self, pods: Iterable[QuotaPod], why: str) -> None:
        """Evict pods that are not leaving already, as far as their disruption budgets allow it."""
        api: KubernetesApi | None = self._handle.client_set()
        if api is None:
            return
        for pod in pods:
            if pod.is_leaving:
                continue
            namespace, _, name = pod.name.partition("/")
            try:
                if await api.evict(namespace, name, pod.uid):
                    self._log.info("pod evicted", pod=pod.name, why=why)
            except KubernetesError as error:
                self._evictions.failed(error, pod.name, pod=pod.name, why=why)
            else:
                self._evictions.worked(pod.name, pod=pod.name)


def _wanted(
    account: QuotaAccount, manifest: Manifest, faults: Sequence[QuotaFault]
) -> tuple[dict[str, object], dict[str, str]]:
    """The parts of status and annotations of an object that have to be written."""
    name, now = objects.name(manifest), objects.time_written(datetime.now(UTC))
    share = account.shares[name]
    status = status_of(account, manifest, faults, now)
    if share.spec.namespace != objects.namespace(manifest):  # the quota of that name is another object
        return {key: value for key, value in status.items() if key == "conditions"}, {}
    before, wanted = objects.annotations(manifest), annotations_of(share, WRITTEN)
    return status, {key: text for key, text in wanted.items() if before.get(key) != text}
