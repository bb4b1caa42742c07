"""A fake API server, the adapter over it, and a core that takes what the adapter tells."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from hosting import logs
from hosting.kubernetes.resources import Manifest, ResourceType
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes.cluster import IsServed, KubernetesCluster
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Kind
from scheduler.permits.core.state import SchedulerConfig, VmRecord
from tests.support.kube_api import FakeApiServer
from tests.support.virtual_time import now_s


class World:
    """A fake API server with the node `n1` (4 CPUs, 16 GiB), the adapter, and a core that takes what the adapter tells."""

    def __init__(self, is_served: IsServed = lambda *_: False) -> None:
        self.server = FakeApiServer()
        self.core = Core(SchedulerConfig(UUID(int=1), is_first_start=True))
        self.told: list[tuple[str, str]] = []
        """Kind and name of objects of which a fault was told."""
        self.cluster = KubernetesCluster(
            self.server.api(),
            now_s,
            random.Random(1),
            logs.logger("test"),
            lambda type_, manifest, _: self.told.append((type_.kind, manifest["metadata"]["name"])),
            is_served,
        )

    def put(self, type_: ResourceType, manifest: Manifest) -> None:
        """Create or change an object; the server gives UIDs."""
        del manifest["metadata"]["uid"]
        self.server.put(type_, manifest)

    async def refresh(self) -> list[str]:
        """The kinds of what is told, with the ledger brought up to date."""
        await asyncio.sleep(0.1)
        return self._take(await self.cluster.refresh())

    async def read(self, *pods: str) -> list[str]:
        return self._take(await self.cluster.read([PodName(name, "default") for name in pods]))

    def _take(self, told: tuple[events.Input, ...]) -> list[str]:
        for event in told:
            self.core.apply(event)
        assert self.core.audit() == []
        return [type(event).__name__ for event in told[:-1]]

    def reserved(self, name: str = "n1") -> Resources:
        account = self.core.ledger.node(name)
        assert account is not None
        return account.reserved

    def row(self, name: str, kind: Kind = Kind.VM) -> Resources | None:
        rows = [row for account in self.core.ledger.nodes() for row in account.rows.values()]
        found = [row for row in rows if (row.holder.kind, row.name) == (kind, f"default/{name}")]
        return found[0].reserved if found else None

    def vm(self, name: str) -> VmRecord:
        record = self.core.vms.find(PodName(name, "default"))
        assert record is not None
        return record


@asynccontextmanager
async def opened(world: World) -> AsyncIterator[World]:
    running = [asyncio.create_task(child()) for child in world.cluster.children().values()]
    try:
        yield world
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
