"""List and watch, the Lease, Events and credentials on a real API server, which is killed and forgets. Rules and edge cases: tests/unit."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.config import incluster_config

from hosting.kubernetes.api import ApiCredentials, KubernetesApi, RefusedError
from hosting.kubernetes.lease import Leadership, LeaseElector, LeaseTimes
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import CONFIG_MAPS, EVENTS, MERGE_PATCH, Manifest
from labs.clusters.control_plane import ControlPlane
from tests.support.kube.objects import Objects
from tests.support.servers import QUIET
from tests.support.waiting import until

NAMESPACE = "default"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
async def own_api(own_control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(ApiCredentials(own_control_plane.kubeconfig), user_agent="test") as api:
        yield api


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(ApiCredentials(control_plane.kubeconfig), user_agent="test") as api:
        yield api


@asynccontextmanager
async def running(*children: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(child()) for child in children]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def config_map(name: str, **data: str) -> Manifest:
    return {"metadata": {"name": name, "labels": {"parley.dev/test": "yes"}}, "data": data}


async def test_what_is_known_survives_a_server_that_is_killed_and_forgets(
    own_control_plane: ControlPlane, own_api: KubernetesApi
) -> None:
    reflector = Reflector(
        own_api,
        CONFIG_MAPS,
        NAMESPACE,
        label_selector="parley.dev/test=yes",
        clock=time.monotonic,
        rng=random.Random(),
        log=QUIET,
    )

    def seen() -> dict[str, Any]:
        return {name: manifest["data"] for (_, name), manifest in reflector.objects().items()}

    async with running(reflector.run):
        await reflector.synced()
        await own_api.create(CONFIG_MAPS, NAMESPACE, config_map("a", x="1"))
        await until(lambda: seen() == {"a": {"x": "1"}})
        own_control_plane.kill_api_server()
        await until(lambda: reflector.fault)
        assert seen() == {"a": {"x": "1"}}
        own_control_plane.start_api_server()
        await own_api.create(CONFIG_MAPS, NAMESPACE, config_map("b", x="1"))
        await until(lambda: set(seen()) == {"a", "b"} and not reflector.fault)

        lists = reflector.health.lists_total
        # The event loop stands still, so that the watch sees none of this.
        own_control_plane.kill_api_server()
        own_control_plane.start_api_server()
        path = CONFIG_MAPS.path(NAMESPACE)
        own_control_plane.call("PATCH", f"{path}/a", {"data": {"x": "2"}}, MERGE_PATCH)
        own_control_plane.call("DELETE", f"{path}/b")
        own_control_plane.forget_history()
        await until(lambda: seen() == {"a": {"x": "2"}} and not reflector.fault)
        assert reflector.health.lists_total > lists, "the watch could not go on"

        began_s = time.monotonic()
        await reflector.caught_up(began_s)
        assert reflector.known_at_s >= began_s
        await own_api.patch(CONFIG_MAPS, NAMESPACE, "a", {"data": {"x": "3"}})
        await reflector.list_one(NAMESPACE, "a")
        assert seen() == {"a": {"x": "3"}}


async def test_one_of_two_leads_and_none_while_the_server_is_away(
    own_control_plane: ControlPlane, own_api: KubernetesApi
) -> None:
    def elector(identity: str) -> LeaseElector:
        return LeaseElector(
            own_api,
            NAMESPACE,
            "leader",
            identity=identity,
            address=f"http://{identity}",
            times=LeaseTimes.of(3),
            clock=time.monotonic,
            rng=random.Random(),
            log=QUIET,
        )

    electors = {name: elector(name) for name in ("a", "b")}
    waiting = {asyncio.create_task(each.acquire(), name=name): name for name, each in electors.items()}
    led: list[Leadership] = []
    try:
        (first,), others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        led.append(await first)
        await until(lambda: all(each.leader == f"http://{waiting[first]}" for each in electors.values()))
        assert led[0].is_valid(time.monotonic())
        own_control_plane.kill_api_server()
        await led[0].lost.wait()
        assert not led[0].is_valid(time.monotonic())
        own_control_plane.start_api_server()
        (second,) = others
        led.append(await second)
        assert led[1].epoch > led[0].epoch
    finally:
        for each in led:
            await each.release()
        for task in waiting:
            task.cancel()


async def test_an_event_is_shown_and_counted(api: KubernetesApi, objects: Objects) -> None:
    about = await api.create(CONFIG_MAPS, objects.namespace, config_map("a"))
    now_s = 0.0
    recorder = EventRecorder(api, "parley.dev/test", clock=lambda: now_s, rng=random.Random(), log=QUIET)

    async def events() -> list[Manifest]:
        selector = {"fieldSelector": "reportingController=parley.dev/test"}
        listed = await api.list(EVENTS, objects.namespace, query=selector)
        return list(listed["items"])

    async with running(recorder.run):
        recorder.record(about, "Warning", "Denied", "Scaling", "no room on its node")
        now_s = 60.0
        recorder.record(about, "Warning", "Denied", "Scaling", "no room on its node")
        await until(recorder._waiting.empty)
        found: list[Manifest] = []
        while not found or "series" not in found[0]:
            found = await events()
    assert (len(found), found[0]["series"]["count"]) == (1, 2)
    assert "no room on its node" in await asyncio.to_thread(
        objects.plane.kubectl, "-n", objects.namespace, "get", "events"
    )
    assert recorder.dropped_total == {}


@contextmanager
def service_account(control_plane: ControlPlane, directory: Path, token: str) -> Iterator[Path]:
    """This process as a pod with a service account; the file of its token."""
    file = directory / "token"
    file.write_text(token)
    host, _, port = control_plane.url.removeprefix("https://").partition(":")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.callback(file.unlink)
        patch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(file))
        patch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(control_plane.authority))
        patch.setenv("KUBERNETES_SERVICE_HOST", host)
        patch.setenv("KUBERNETES_SERVICE_PORT", port)
        yield file


async def test_a_service_accounts_token_may_change(
    control_plane: ControlPlane, objects: Objects, tmp_path: Path
) -> None:
    token = control_plane.token(objects.namespace, "default")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with service_account(control_plane, tmp_path, "an old one") as file:
        async with KubernetesApi(ApiCredentials(), user_agent="test") as api:
            file.write_text(token)
            answer = await api.call("POST", WHO_AM_I, body=body)
            user = answer["status"]["userInfo"]["username"]
            assert user == f"system:serviceaccount:{objects.namespace}:default"
            with pytest.raises(RefusedError, match="403 Forbidden"):
                await api.list(CONFIG_MAPS, objects.namespace)
