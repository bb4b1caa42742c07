"""The scheduler of a situation: its real core, permit service, pools and pages, without sockets and without real time."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from hosting import server
from hosting.routes import answered
from hosting.server import HangUp, Reply, Request
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from protocol.values import Bounds, Observation
from protocol.wire import PodName
from scheduler.explain.pages import ExplainPages
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import POOL_LABEL, NodeSpec, PodSpec, VmSpec
from scheduler.permits.core.rules import DEFAULT_RULES, GrowthSwitches
from scheduler.permits.core.state import SchedulerConfig, VmRecord
from scheduler.permits.service.service import PermitService
from scheduler.permits.service.transport import PermitTransport
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.objects import PoolObjects
from scheduler.pools.chain.plugin import Plugin, PoolHandle, ProviderSet
from scheduler.pools.core.values import Pool, PoolLimits
from scheduler.pools.shipped import quota, quota_args
from tests.support.amounts import GIB, UNIT, cu
from tests.support.virtual_time import now_s
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_permits.service_worlds import INSTANCE, FakeCluster, ask

NAMESPACE = "shop"
NEIGHBOUR_AGENT = UUID(int=1)


class SchedulerSide:
    """One scheduler process that leads a cluster of the node `n1` with `room` units of one CPU and 1 GiB.

    `is_first_start` False is a restart: what agents hold from before is kept until they ask.
    """

    def __init__(
        self,
        *,
        room: int = 16,
        is_first_start: bool = True,
        published_agents: tuple[str, ...] = (),
        unit_known: bool = True,
        plugins: tuple[Plugin, ...] = (),
    ) -> None:
        self.core = Core(
            SchedulerConfig(INSTANCE, is_first_start=is_first_start, published_agents=published_agents)
        )
        self.cluster = FakeCluster(self.core)
        log, self.lines = recorded()
        self.service = PermitService(self.core, self.cluster, now_s, log)
        self.transport = PermitTransport(self.service)
        self.pool_objects = PoolObjects(self.core, self.service.take, now_s, log, PoolStats(), None)
        self.service._effects._pools = self.pool_objects.admission_queue
        self._pages = ExplainPages(
            self.core, self.service.recorder.memory, self.pool_objects.admission_queue.state_of, now_s
        )
        self._log = log
        self.use(*plugins)
        self.unit_known = unit_known
        self.core.apply(events.NodeSeen(NodeSpec("n1", cu(room), UNIT if unit_known else None)))
        self.core.apply(events.ClockTicked(0.0))

    # ---------------------------------------------------------------- what there is

    def use(self, *plugins: Plugin) -> None:
        """The plugins of pools are these from now on."""
        self.pool_objects.use(PluginManager(*plugins, log=self._log, watch=PoolStats()))

    def use_quota(self, *tenants: Mapping[str, Any]) -> None:
        """The shipped plugin `quota` with a tree of tenants, in units of one CPU and 1 GiB."""
        args = {"computeUnit": {"cpu": 1, "memory": "1Gi"}, "tenants": list(tenants)}
        handle = PoolHandle(self.pool_objects, self.pool_objects, self._log)
        self.use(quota.factory(handle, ProviderSet(), args))

    async def pool(self, name: str, most: int | None = None, tenant: str | None = None) -> None:
        """A pool whose units are one CPU and 1 GiB, with `maxUnits`."""
        labels = {} if tenant is None else {quota_args.TENANT_LABEL: tenant}
        await self.pool_objects.create(Pool(name, UNIT, PoolLimits(most), labels=labels))

    def vm(
        self,
        name: str,
        units: int,
        *,
        most: int = 16,
        pool: str | None = None,
        is_new: bool = True,
        uid: str | None = None,
    ) -> None:
        """The cluster shows a VM of so many units."""
        labels = ((POOL_LABEL, pool),) if pool is not None else ()
        spec = VmSpec(
            PodName(name, NAMESPACE),
            f"uid-{name}" if uid is None else uid,
            "n1",
            Bounds(UNIT, cu(most)),
            GIB,
            UNIT if self.unit_known else None,
            pool=pool,
            labels=labels,
        )
        reading = Observation(cu(units), cu(units), now_s())
        self.service.take(events.VmSeen(spec, reading, now_s(), is_new=is_new))

    def pod(self, name: str, cpus: int, memory_gib: int | None = None) -> None:
        """The cluster shows a pod that is no VM."""
        spec = PodSpec(PodName(name, NAMESPACE), f"uid-{name}", "n1", cu(cpus, memory_gib))
        self.service.take(events.PodSeen(spec))

    def shows(self, name: str, reading: Observation) -> None:
        """A read of the cluster shows a VM's size."""
        record = self.core.vms.find(PodName(name, NAMESPACE))
        if record is not None:
            self.service.take(events.VmSeen(record.spec, reading, now_s()))

    async def reads(self, *changes: events.Input) -> None:
        """A read of the cluster shows these changes."""
        self.cluster.changes = changes
        assert await self.service.refresh()

    def room(self, units: int) -> None:
        """The node has so many units from now on."""
        self.service.take(events.NodeSeen(NodeSpec("n1", cu(units), UNIT)))

    def growth(self, **switches: Any) -> None:
        """The operator's switches of growth."""
        self.service.take(events.Configured(replace(DEFAULT_RULES, growth=GrowthSwitches(**switches))))

    # ---------------------------------------------------------------- neighbours

    def record(self, name: str) -> VmRecord:
        found = self.core.vms.find(PodName(name, NAMESPACE))
        assert found is not None, name
        return found

    async def grows(self, name: str, units: int) -> int:
        """A neighbour's agent asks for so many units; how many it is permitted."""
        record = self.record(name)
        held = record.row.state.current.vcpu_milli // 1000
        pod = {"name": name, "namespace": NAMESPACE}
        body = ask(name, units, record.gate.last + 1, claim=min(held, units), pod=pod)
        headers = {AGENT_HEADER.lower(): str(NEIGHBOUR_AGENT)}
        reply = await answered(self.transport.serve(Request("POST", "/", body, headers)))
        assert isinstance(reply, Reply), reply
        content = json.loads(reply.body)
        assert reply.status == 200, content
        return int(content["raw"]["permit"]["cpu"])

    # ---------------------------------------------------------------- calls and time

    async def serve(self, request: Request) -> Reply | HangUp:
        """One request to the service."""
        return await answered(self.transport.serve(request))

    async def page(self, path: str) -> Reply:
        """`GET path` of one of the pages that explain."""
        path, _, query = path.partition("?")
        for route in self._pages.routes():
            parameters = _parameters(route.path, path)
            if parameters is not None:
                request = Request("GET", path, b"", parameters=parameters, query=dict(parse_qsl(query)))
                reply = await route.answer(request)
                assert isinstance(reply, Reply)
                return reply
        assert path.startswith("/v1/scheduling/diagnoses/"), f"there is no page {path}"
        return server.problem(404, ErrorCode.NOTHING_KNOWN, "nothing is placed here")

    async def tick(self) -> None:
        """A second has passed."""
        self.service.tick()

    async def close(self) -> None:
        """End what still waits."""
        await self.service.close()
        await asyncio.sleep(0)


def _parameters(pattern: str, path: str) -> dict[str, str] | None:
    """The parts of `path` that stand in braces in `pattern`; None where it is another path."""
    names, parts = pattern.split("/"), path.split("/")
    if len(names) != len(parts):
        return None
    found = {name.strip("{}"): part for name, part in zip(names, parts, strict=True) if name.startswith("{")}
    is_same = all(name == part for name, part in zip(names, parts, strict=True) if not name.startswith("{"))
    return found if is_same else None
