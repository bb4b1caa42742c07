"""Plants of the clusters that there are: a file that is rewritten, and objects that are watched."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from unittest import mock

from hosting import logs, threads, watched_file
from hosting.kubernetes.api import KubernetesApi
from scheduler.clusters.file import FileCluster
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.ports import Cluster
from tests.conformance.cluster_api_server import ApiServer, Pace
from tests.conformance.cluster_clauses import ClusterPlant
from tests.conformance.cluster_kubernetes import SimulatedApi
from tests.conformance.cluster_truth import NODE, Key, Thing, World
from tests.conformance.cluster_watched import WatchedCluster
from tests.support.virtual_time import now_s

T = TypeVar("T")
Wrap = Callable[[Cluster], Cluster]


def _as_it_is(cluster: Cluster) -> Cluster:
    return cluster


@contextmanager
def watched(
    _: Path, seed: int, kind: type[WatchedCluster] = WatchedCluster, wrap: Wrap = _as_it_is
) -> Iterator[ClusterPlant]:
    """Objects of an API server, watched."""
    rng = random.Random(seed)
    pace = Pace(rng)
    server, world = ApiServer(pace), World()
    world.accept = server.accept

    @asynccontextmanager
    async def opened() -> AsyncIterator[Cluster]:
        async with kind(server, rng) as cluster:
            yield wrap(cluster)

    def grow_unnoticed(name: str) -> None:
        world.put("vm", name)  # whatever keeps sizes there up to date is part of the cluster

    yield ClusterPlant(world, pace, opened, server.cut, grow_unnoticed, is_current=True)


@contextmanager
def kubernetes(
    _: Path, seed: int, kind: type[KubernetesCluster] = KubernetesCluster, wrap: Wrap = _as_it_is
) -> Iterator[ClusterPlant]:
    """Objects of an API server of Kubernetes."""
    rng = random.Random(seed)
    pace = Pace(rng)
    server, world = ApiServer(pace), World()
    world.accept = server.accept

    @asynccontextmanager
    async def opened() -> AsyncIterator[Cluster]:
        cluster = kind(cast("KubernetesApi", SimulatedApi(server)), now_s, rng, logs.logger("cluster"))
        running = [asyncio.create_task(child()) for child in cluster.children().values()]
        try:
            yield wrap(cluster)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def grow_unnoticed(name: str) -> None:
        world.put("vm", name)  # whatever keeps sizes there up to date is part of the cluster

    yield ClusterPlant(world, pace, opened, server.cut, grow_unnoticed, is_current=True)


def _entry(thing: Thing) -> dict[str, Any]:
    amount = _written(thing.amount.vcpu_milli)
    if thing.kind == "node":
        return {"name": thing.name, "allocatable": amount}
    entry = {"namespace": "default", "name": thing.name, "uid": thing.uid, "node": NODE}
    entry["phase"] = "Succeeded" if thing.has_ended else "Running"
    if thing.kind == "pod":
        return {**entry, "requests": amount}
    least = {"cpu": "1m", "memory": 1}
    return {**entry, "min": least, "max": _written(thing.max.vcpu_milli), "size": amount}


def _written(vcpu_milli: int) -> dict[str, Any]:
    return {"cpu": f"{vcpu_milli}m", "memory": "1Gi"}


class _Writer:
    """Keeps the file as the world is. Some writers put a new file in its place, some write into the one that is there."""

    def __init__(self, path: Path, rng: random.Random, *, spoils: bool) -> None:
        self.path, self._rng, self._spoils = path, rng, spoils
        self._text = ""

    def write(self, world: World) -> None:
        things: dict[str, list[str]] = {"node": [], "vm": [], "pod": []}
        for thing in world.now.values():
            things[thing.kind].append(f"- {_entry(thing)}\n")
        self._text = "".join(f"{kind}s:\n{''.join(lines)}" for kind, lines in things.items() if lines)
        self._put(self._text)

    def fail(self, fails: bool) -> None:
        """There is no file, or one with faults; then there is the last one again."""
        if fails and not self._spoils:
            self.path.unlink()
        else:
            self._put("colour: red" if fails else self._text)

    def _put(self, text: str) -> None:
        place = self.path if self._rng.random() < 0.5 else self.path.with_suffix(".new")
        place.write_text(text)
        os.utime(place, (now_s(), now_s()))
        place.replace(self.path)


class _FilePace(Pace):
    """Reads of a file: its failures are the writer's."""

    def __init__(self, rng: random.Random, writer: _Writer) -> None:
        super().__init__(rng)
        self._writer = writer

    def __setattr__(self, name: str, value: Any) -> None:
        changed = name == "fails" and value != getattr(self, "fails", False)
        super().__setattr__(name, value)
        if changed:
            self._writer.fail(value)


def _in_virtual_thread(pace: Pace) -> Callable[[Callable[[], T]], asyncio.Future[T]]:
    """As `hosting.threads.in_own_thread`: nobody who gives up waiting ends it. Its time is virtual."""
    running: set[asyncio.Task[Any]] = set()

    def start(call: Callable[[], T]) -> asyncio.Future[T]:
        async def run() -> T:
            await pace.wait(pace.ask_s)
            try:
                return call()
            finally:
                await pace.wait(pace.answer_s)

        task = asyncio.create_task(run(), name="thread")
        running.add(task)
        task.add_done_callback(running.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait
        return task

    return start


def _file_plant(spoils: bool) -> "Callable[..., Any]":
    @contextmanager
    def planted(
        directory: Path, seed: int, kind: type[FileCluster] = FileCluster, wrap: Wrap = _as_it_is
    ) -> Iterator[ClusterPlant]:
        rng, world = random.Random(seed), World()
        directory.mkdir(exist_ok=True)
        writer = _Writer(directory / "cluster.yaml", rng, spoils=spoils)
        pace = _FilePace(rng, writer)

        def accept(_key: Key, _thing: Thing | None) -> None:
            writer.write(world)

        world.accept = accept

        @asynccontextmanager
        async def opened() -> AsyncIterator[Cluster]:
            yield wrap(kind(writer.path, now_s, unix_offset_s=0.0))

        in_thread = _in_virtual_thread(pace)
        with (
            mock.patch.object(threads, "in_own_thread", in_thread),
            mock.patch.object(watched_file, "in_own_thread", in_thread),
        ):
            yield ClusterPlant(world, pace, opened, lambda: None, world.grow_unnoticed, is_current=False)

    return planted


PLANTS: Final = {
    "file that goes": _file_plant(spoils=False),
    "file with faults": _file_plant(spoils=True),
    "watched": watched,
    "Kubernetes": kubernetes,
}
