"""List and watch, and credentials on a real API server, which is killed and forgets. Rules and edge cases: tests/unit."""

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
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import CONFIG_MAPS, MERGE_PATCH, Manifest
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
