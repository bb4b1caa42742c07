"""`DefaultPreBind`: one write for all that plugins have changed, to the right pod, tried again where that may help."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hosting.kubernetes.resources import MERGE_PATCH, PODS, Manifest
from scheduler.placing.core.values import Code, Status, code_of
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.default_pre_bind import TRIES, DefaultPreBind, merge_patch
from tests.support.kube_api import FakeApiServer
from tests.support.kube_patches import patched
from tests.support.virtual_time import virtually

JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_the_patch_makes_the_one_from_the_other_and_there_is_none_between_equals(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    patch = merge_patch(before, after)
    assert patched(before, patch, MERGE_PATCH) == after
    assert (patch == {}) == (before == after)


class Handle:
    def __init__(self, server: FakeApiServer | None) -> None:
        self._api = server.api() if server is not None else None

    def client_set(self) -> Any:
        return self._api


async def written(
    server: FakeApiServer | None, before: Manifest, annotations: dict[str, str]
) -> Status | None:
    plugin: Any = DefaultPreBind(None, Handle(server))  # type: ignore[arg-type] # the one thing that it asks its handle for
    after = {**before, "metadata": {**before["metadata"], "annotations": annotations}}
    found: Status | None = await plugin.apply_patch(CycleState(), before, after)
    return found


def served() -> tuple[FakeApiServer, Manifest]:
    server = FakeApiServer()
    server.put(PODS, {"metadata": {"namespace": "ns", "name": "p", "annotations": {"a": "1"}}, "spec": {}})
    return server, server.get(PODS, "ns", "p")


def annotations(server: FakeApiServer) -> Any:
    return server.get(PODS, "ns", "p")["metadata"]["annotations"]


@virtually
async def test_what_plugins_changed_is_written_and_nothing_else() -> None:
    server, pod = served()
    server.put(PODS, {**pod, "metadata": {**pod["metadata"], "annotations": {"a": "1", "other": "2"}}})
    assert await written(server, pod, {"b": "3"}) is None
    assert annotations(server) == {"other": "2", "b": "3"}
    server.calls.clear()
    assert await written(server, pod, {"a": "1"}) is None
    assert server.calls == [], "nothing was changed"


@virtually
async def test_without_an_api_server_there_is_nothing_to_do() -> None:
    assert code_of(await written(None, served()[1], {"b": "1"})) is Code.SKIP


@virtually
async def test_faults_that_pass_are_waited_out_and_others_keep_the_pod_from_being_bound() -> None:
    server, pod = served()
    server.fail("status", status=409, reason="Conflict")
    server.fail("status", status=429, reason="TooManyRequests")
    server.fail("cut", after=True)
    assert await written(server, pod, {"b": "1"}) is None
    assert annotations(server) == {"b": "1"}
    server.fail("cut", times=TRIES)
    assert code_of(await written(server, pod, {"b": "2"})) is Code.ERROR
    server.heal()
    server.fail("status", status=403, reason="Forbidden")
    server.calls.clear()
    status = await written(server, pod, {"b": "2"})
    assert (code_of(status), len(server.calls)) == (Code.ERROR, 1)


@virtually
async def test_another_pod_of_that_name_is_left_alone() -> None:
    server, pod = served()
    server.delete(PODS, "ns", "p")
    server.put(PODS, {"metadata": {"namespace": "ns", "name": "p", "annotations": {}}, "spec": {}})
    status = await written(server, pod, {"b": "1"})
    assert (code_of(status), annotations(server)) == (Code.ERROR, {})


@virtually
async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    server, pod = served()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = await written(server, pod, {"b": "1"})
    assert status is not None
    assert (status.code, status.message) == (Code.ERROR, "pod ns/p is being deleted")
