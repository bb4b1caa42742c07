"""The OpenAPI documents of a scheduler's ports: schemathesis calls every operation as they say, and otherwise, and finds nothing."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hosting import openapi
from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from hosting.server import Route, Server
from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo, Reservation
from scheduler.placing.core.values import Endpoint
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.kube_extender.service import PREFIX
from tests.support.amounts import cu
from tests.support.openapi import document_faults
from tests.support.processes import agent_file, cluster_file, fetch, free_port, running, vms, write_json
from tests.support.waiting import shown_blocking
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_extender.extender_worlds import World
from tests.unit.scheduler_framework.extender_worlds import FILTERED, ExtenderWorld, told
from tests.unit.scheduler_framework.plugin_worlds import node, pod, row

from .schedulers import AskingAgent

CALLS = Path(__file__).parent / "api_calls.toml"
ROOT = Path(__file__).parents[2]
PATIENCE_S = 110
"""More than schemathesis needs on a slow machine; within the time-out of a test."""


class Served(NamedTuple):
    """A server's port, and its document."""

    port: int
    document: dict[str, Any]


def api_cluster(place: Path) -> Path:
    """A node with three VMs, two of them in one of two pools."""
    path = cluster_file(place / "cluster.yaml", ["a", "b", "c"])
    content = json.loads(path.read_text())
    unit = {"cpu": 1, "memory": "1Gi"}
    content["pools"] = [
        {"name": "ci", "computeUnit": unit, "limits": {"maxUnits": 4}},
        {"name": "bank", "computeUnit": unit},
    ]
    for vm in content["vms"][:2]:
        vm["labels"] = {"parley.dev/pool": "ci"}
    return write_json(path, content)


@contextmanager
def agents_port(place: Path) -> Iterator[Served]:
    """The port of a scheduler's process that has granted and denied something, with the live page."""
    port = free_port()
    arguments = ["--cluster", str(api_cluster(place)), "--port", str(port), "--first-start", "--page"]
    with running("scheduler", *arguments, output=place / "scheduler.log"):
        shown_blocking("a scheduler that serves", lambda: fetch(port, "/readyz"))
        for name in ("a", "b"):
            AskingAgent(port, name).settle().ask(4)
        yield Served(port, json.loads(fetch(port, "/v1/openapi.json")))


@contextmanager
def in_thread(make: Callable[[], tuple[Route, ...]], path: str) -> Iterator[Served]:
    """A server of these routes, which are made in its own loop; `path` is that of its document."""
    opened: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        try:
            server = Server(recorded()[0], make())
            is_over = asyncio.Event()
            opened.set_result((await server.start("127.0.0.1", 0), asyncio.get_running_loop(), is_over))
        except BaseException as error:
            opened.set_exception(error)
            raise
        await is_over.wait()
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="server of a document")
    thread.start()
    port, loop, is_over = opened.result(20)
    try:
        yield Served(port, json.loads(fetch(port, path)))
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(20)


@contextmanager
def agents_pages(place: Path) -> Iterator[Served]:
    """The port of an agent's process with a VM, whose scheduler and informant are away."""
    port, away = free_port(), free_port()
    agent_file(place / "agent.yaml", away, {"a": away})
    arguments = ["--config", str(place / "agent.yaml"), "--port", str(port)]
    with running("agent", *arguments, output=place / "agent.log"):
        shown_blocking("an agent that has looked at its VM", lambda: vms(port)["d/a"]["size"])
        yield Served(port, json.loads(fetch(port, "/v1/openapi.json")))


PAGES = (
    Endpoint("/state", lambda _: {"pods": 3}),
    Endpoint("/nodes/{node}", lambda named: dict(named) if named["node"] == "n1" else None),
)


def scheduling_routes() -> tuple[Route, ...]:
    """The pages of scheduling, with a node, a reservation, a diagnosis and a plugin that has pages."""
    reservation = Reservation("uid-r", "r", "n1", cu(2))
    world = ExtenderWorld(
        [told("A", "reserve", endpoints=PAGES)],
        reservations=lambda name: [reservation] if name == "n1" else [],
    )
    world.extender.record_rejection(CycleState(), pod("a", cu(1)), {"n1": FILTERED.by("A")})
    shown = node("n1", cu(4), [row("v", cu(1))], pods=[pod("v", cu(1))])
    routes = world.shared.routes(lambda: {"n1": shown})
    return (*routes, openapi.route("Pages of scheduling", "1", routes))


@contextmanager
def scheduling_pages(place: Path) -> Iterator[Served]:
    """The pages below /v1/scheduling, which a scheduler on Kubernetes has beside the others."""
    del place
    with in_thread(scheduling_routes, openapi.PATH) as served:
        yield served


class AnyPods(World):
    """Reads no more of a pod than its head: what else there is of a pod is Kubernetes' to check."""

    def pod_info(self, manifest: Manifest) -> PodInfo:
        name = PodName(objects.name(manifest), objects.namespace(manifest))
        return PodInfo(name, objects.uid(manifest), cu(1), manifest=manifest)


def extender_routes() -> tuple[Route, ...]:
    """The verbs over a ledger of two nodes, one of which is taken."""
    world = AnyPods()
    world.place("one", "b")
    return world.service.routes()


@contextmanager
def extenders_port(place: Path) -> Iterator[Served]:
    """The port that kube-scheduler calls."""
    del place
    with in_thread(extender_routes, f"{PREFIX}/openapi.json") as served:
        yield served


SERVERS = {each.__name__: each for each in (agents_port, agents_pages, scheduling_pages, extenders_port)}


@pytest.mark.parametrize("serve", SERVERS.values(), ids=SERVERS)
def test_schemathesis_finds_nothing(serve: Callable[[Path], Any], tmp_path: Path) -> None:
    # Continuous integration calls the same each time; a run on somebody's machine calls anew, and tells its seed.
    seed = 1 if "CI" in os.environ else random.randrange(2**32)
    report = tmp_path / "calls.json"
    with serve(tmp_path) as served:
        assert document_faults(served.document) == []
        file = write_json(tmp_path / "openapi.json", served.document)
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CALLS), "--no-color"]
        where = ["run", str(file), "--url", f"http://127.0.0.1:{served.port}"]
        done = subprocess.run(
            [*command, *where, "--seed", str(seed), "--report-json-path", str(report)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr}"
    operations = sum(len(methods) for methods in served.document["paths"].values())
    assert f"Tested: {operations}\n" in done.stdout, done.stdout
