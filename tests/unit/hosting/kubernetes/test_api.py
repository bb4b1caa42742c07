"""Calls to an API server, over sockets: deadlines, faults with their names, credentials that change."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes.api import (
    ApiCredentials,
    CredentialsError,
    KubernetesApi,
    Proxied,
    RefusedError,
    UnreachableError,
)
from hosting.kubernetes.connection import KubeContext, context_of
from hosting.kubernetes.errors import refusal
from hosting.kubernetes.resources import JSON_PATCH, PODS, STRATEGIC_PATCH, Manifest
from hosting.server import Reply, Request
from tests.support.kube_api import FakeApiServer, serving, writes
from tests.support.kube_store import RefusalError
from tests.support.servers import answering

User = dict[str, Any]


def kubeconfig(path: Path, address: str, user: User | None = None) -> Path:
    """A kubeconfig as JSON, which is YAML."""
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": address}}],
        "users": [{"name": "test", "user": user or {}}],
    }
    path.write_text(json.dumps(written))
    return path


def pod(name: str, **labels: str) -> Manifest:
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}, {"name": "beside"}]
    return {
        "metadata": {"namespace": "ns", "name": name, "labels": labels},
        "spec": {"containers": containers},
    }


@pytest.fixture
def server() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture
async def api(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with serving(server) as address:
        credentials = ApiCredentials(kubeconfig(tmp_path / "config", address))
        async with KubernetesApi(credentials, user_agent="test") as api:
            yield api


async def test_objects_are_created_read_changed_and_deleted(api: KubernetesApi) -> None:
    made = await api.create(PODS, "ns", pod("a"))
    assert await api.get(PODS, "ns", "a") == made
    assert (await api.list(PODS, "ns", query={"labelSelector": "x=1"}))["items"] == []
    await api.patch(PODS, "ns", "a", {"metadata": {"labels": {"x": "1"}}})
    assert len((await api.list(PODS, query={"labelSelector": "x=1"}))["items"]) == 1
    with pytest.raises(RefusedError) as caught:
        await api.replace(PODS, "ns", made)
    assert caught.value.is_conflict, "the version is an old one"
    size = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    sized = await api.patch(PODS, "ns", "a", size, content_type=STRATEGIC_PATCH, subresource="resize")
    assert [each["name"] for each in sized["spec"]["containers"]] == ["main", "beside"]
    assert sized["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    steps = [{"op": "test", "path": "/metadata/labels/x", "value": "2"}]
    with pytest.raises(RefusedError, match="422"):
        await api.patch(PODS, "ns", "a", steps, content_type=JSON_PATCH)
    await api.delete(PODS, "ns", "a")
    with pytest.raises(RefusedError) as caught:
        await api.get(PODS, "ns", "a")
    assert caught.value.is_not_found


@pytest.mark.parametrize(
    ("fault", "expected", "text"),
    [
        ({"kind": "status", "text": "oh no\n"}, RefusedError, "500: oh no"),
        ({"kind": "status", "status": 429, "retry_after": "7"}, RefusedError, "429: put in"),
        ({"kind": "status", "status": 200, "text": "{"}, UnreachableError, "200 without JSON"),
        ({"kind": "status", "status": 200, "text": "[" * 200_000}, UnreachableError, "200 without JSON"),
        ({"kind": "status", "text": "[" * 200_000}, RefusedError, r"500: \[\["),
        ({"kind": "status", "status": 200, "text": "[]"}, UnreachableError, "200 without an object"),
        ({"kind": "hang"}, UnreachableError, "no answer within 0.05 s"),
        ({"kind": "cut", "times": 2}, UnreachableError, "Disconnected"),
    ],
)
async def test_a_fault_has_its_name(
    server: FakeApiServer, api: KubernetesApi, fault: dict[str, Any], expected: type[Exception], text: str
) -> None:
    server.fail(**fault)  # aiohttp sends a GET twice if the connection that it was sent over had ended
    with pytest.raises(expected, match=text):
        await api.list(PODS, deadline_s=0.05 if fault["kind"] == "hang" else 5.0)
    server.heal()  # a call that ends this soon may never have met the fault
    assert (await api.list(PODS))["items"] == [], "the next call works"


async def test_calls_are_counted_by_how_they_ended(server: FakeApiServer, api: KubernetesApi) -> None:
    await api.create(PODS, "ns", pod("a"))
    with pytest.raises(RefusedError):
        await api.get(PODS, "ns", "b")
    server.fail(kind="hang")
    with pytest.raises(UnreachableError):
        await api.list(PODS, deadline_s=0.05)
    (family,) = api.families()
    assert dict(family.samples) == {("GET", "404"): 1, ("GET", "unreachable"): 1, ("POST", "ok"): 1}


async def test_patience_that_the_server_asks_for_is_told_whichever_way_it_is_written(
    server: FakeApiServer, api: KubernetesApi
) -> None:
    def busy(_: object) -> None:
        raise RefusalError(429, "TooManyRequests", retry_after_s=3)

    server.fail("status", status=503, text="busy", retry_after="9")
    with pytest.raises(RefusedError) as caught:
        await api.list(PODS)
    assert (caught.value.is_overloaded, caught.value.retry_after_s) == (True, 9.0)
    server.hooks.append(busy)
    with pytest.raises(RefusedError) as caught:
        await api.list(PODS)
    assert (caught.value.reason, caught.value.retry_after_s) == ("TooManyRequests", 3.0)


async def test_a_call_whose_answer_is_lost_may_have_had_its_effect(
    server: FakeApiServer, api: KubernetesApi
) -> None:
    server.fail("cut", writes, after=True)
    with pytest.raises(UnreachableError):
        await api.create(PODS, "ns", pod("a"))
    assert await api.get(PODS, "ns", "a")


async def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    async with serving(FakeApiServer()) as address:
        path = kubeconfig(tmp_path / "config", address)
    async with KubernetesApi(ApiCredentials(path), user_agent="test") as api:
        with pytest.raises(UnreachableError, match="ClientConnectorError"):
            await api.list(PODS)


# ------------------------------------------------------------ streams

WATCH = {"watch": "1", "resourceVersion": "1000"}


async def test_a_stream_gives_the_lines_of_a_watch(server: FakeApiServer, api: KubernetesApi) -> None:
    async with api.stream(PODS.path(), WATCH, connect_deadline_s=5, silence_s=5) as lines:
        server.put(PODS, pod("a"))
        assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "a"
        server.send(None)
        assert [line async for line in lines] == []


async def test_a_stream_that_is_silent_for_too_long_ends(api: KubernetesApi) -> None:
    async with api.stream(PODS.path(), WATCH, connect_deadline_s=5, silence_s=0.05) as lines:
        assert [line async for line in lines] == []


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda server: server.send(OSError()), "ClientPayloadError|Disconnected|ConnectionReset"),
        (lambda server: server.send(b"x" * 5_000_000), "LineTooLong"),
    ],
)
async def test_a_stream_that_breaks_is_unreachable(
    server: FakeApiServer,
    api: KubernetesApi,
    break_it: Callable[[FakeApiServer], None],
    text: str,
) -> None:
    async with api.stream(PODS.path(), WATCH, connect_deadline_s=5, silence_s=5) as lines:
        break_it(server)
        with pytest.raises(UnreachableError, match=text):
            await anext(lines)


async def test_a_stream_that_is_refused_or_not_answered_says_so(
    server: FakeApiServer, api: KubernetesApi
) -> None:
    server.fail("status", status=500, text="oh no")
    with pytest.raises(RefusedError, match="oh no"):
        async with api.stream(PODS.path(), WATCH, connect_deadline_s=5, silence_s=5):
            pass
    server.fail("hang")
    with pytest.raises(UnreachableError):
        async with api.stream(PODS.path(), WATCH, connect_deadline_s=0.05, silence_s=5):
            pass


async def test_a_fault_of_whoever_reads_a_stream_stays_that_fault(api: KubernetesApi) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with api.stream(PODS.path(), WATCH, connect_deadline_s=5, silence_s=5):
            raise ValueError("mine")


# ------------------------------------------------------------ credentials


class Guarded:
    """A server that lets one token in."""

    def __init__(self) -> None:
        self.shown: list[str | None] = []

    async def answer(self, request: Request) -> Reply:
        self.shown.append(request.headers.get("authorization"))
        return Reply(200 if self.shown[-1] == "Bearer new" else 401, b"{}")


PROGRAM = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "'$(cat TOKEN)'"}}'
"""


def user_by(where: str, token: Path) -> User:
    """A user of a kubeconfig whose token is in a file, beside it, or is told by a program."""
    if where == "tokenFile":
        return {"tokenFile": str(token)}
    if where == "token":
        return {"token": token.read_text()}
    program = token.with_name("program")
    program.write_text(PROGRAM.replace("TOKEN", str(token)))
    program.chmod(0o700)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    return {"exec": command | {"command": str(program)}}


@pytest.mark.parametrize("where", ["tokenFile", "token", "exec"])
async def test_a_token_that_has_changed_is_read_again(where: str, tmp_path: Path) -> None:
    token, guarded = tmp_path / "token", Guarded()
    token.write_text("old")
    async with answering(guarded.answer) as address:
        path = kubeconfig(tmp_path / "config", address, user_by(where, token))
        async with KubernetesApi(ApiCredentials(path), user_agent="test") as api:
            token.write_text("new")
            kubeconfig(path, address, user_by(where, token))
            assert await api.call("GET", "/version") == {}
    assert guarded.shown == ["Bearer old", "Bearer new"]


async def test_a_token_that_stays_wrong_is_not_read_with_each_call(tmp_path: Path) -> None:
    guarded = Guarded()
    async with answering(guarded.answer) as address:
        path = kubeconfig(tmp_path / "config", address, {"token": "old"})
        async with KubernetesApi(ApiCredentials(path), user_agent="test") as api:
            for _ in range(3):
                with pytest.raises(RefusedError, match="401"):
                    await api.call("GET", "/version")
    assert len(guarded.shown) == 4, "one call is repeated"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "a: b",
        "users: 3",
        '{"current-context": "x", "contexts": [], "clusters": [], "users": []}',
    ],
)
async def test_a_kubeconfig_that_is_none_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CredentialsError, match="cannot be used"):
        async with KubernetesApi(ApiCredentials(path), user_agent="test"):
            pass


async def test_neither_a_kubeconfig_nor_a_service_account_is_told(tmp_path: Path) -> None:
    for credentials in (ApiCredentials(tmp_path / "none"), ApiCredentials()):
        with pytest.raises(CredentialsError, match="cannot be used"):
            async with KubernetesApi(credentials, user_agent="test"):
                pass


WORDS_OF_A_PROGRAM = {
    "a problem document": b'{"status": 401, "code": "unauthorised"}',
    "nothing": b"",
    "more than any Status": b"x" * 200_000,
    "nothing but brackets": b"[" * 50_000,
}


@pytest.mark.parametrize("text", WORDS_OF_A_PROGRAM.values(), ids=WORDS_OF_A_PROGRAM)
async def test_a_program_behind_the_proxy_that_refuses_its_caller_does_not_refuse_our_credentials(
    text: bytes, tmp_path: Path
) -> None:
    shown: list[str | None] = []

    async def refuse(request: Request) -> Reply:
        shown.append(request.headers.get("authorization"))
        return Reply(401, text)

    async with answering(refuse) as address:
        path = kubeconfig(tmp_path / "config", address, {"token": "ours"})
        async with KubernetesApi(ApiCredentials(path), user_agent="test") as api:
            assert await api.proxied("/version") == Proxied(401, text)
    assert shown == ["Bearer ours"]


async def test_an_api_server_that_refuses_us_at_its_proxy_is_asked_again_with_new_credentials(
    tmp_path: Path,
) -> None:
    shown: list[str | None] = []

    async def refuse(request: Request) -> Reply:
        shown.append(request.headers.get("authorization"))
        return Reply(401, b'{"kind": "Status", "apiVersion": "v1", "reason": "Unauthorized", "code": 401}')

    async with answering(refuse) as address:
        path = kubeconfig(tmp_path / "config", address, {"token": "old"})
        async with KubernetesApi(ApiCredentials(path), user_agent="test") as api:
            kubeconfig(path, address, {"token": "new"})
            with pytest.raises(RefusedError, match="401"):
                await api.proxied("/version")
    assert shown == ["Bearer old", "Bearer new"]


# ------------------------------------------------------------ programs behind the proxy


def with_program(server: FakeApiServer, status: int, body: bytes) -> str:
    """A pod whose program always answers so; the path that leads to its page."""
    server.put(PODS, pod("a") | {"status": {"podIP": "10.0.0.1"}})
    server.programs["http:a:80"] = lambda _, path: (status, body or path.encode())
    return PODS.path("ns", "http:a:80", "proxy") + "/v1/page"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"any text"),
        (403, b"not for you\n"),
        (503, b'{"kind": "Status"}'),
        (500, b'{"status": 500}'),
        (500, b"[" * 200_000),
    ],
    ids=["text", "refusal", "half a Status", "an object", "nested without end"],
)
async def test_the_answer_of_a_program_is_its_own_whatever_its_status(
    server: FakeApiServer, api: KubernetesApi, status: int, body: bytes
) -> None:
    assert await api.proxied(with_program(server, status, body)) == Proxied(status, body)


async def test_query_and_headers_reach_a_program(server: FakeApiServer, api: KubernetesApi) -> None:
    path = with_program(server, 200, b"")
    assert await api.proxied(path, query={"n": "1"}, headers={"Parley-Token": "x"}) == Proxied(
        200, b"/v1/page"
    )
    call = server.calls[-1]
    assert (call.query, call.headers["Parley-Token"]) == ({"n": "1"}, "x")


@pytest.mark.parametrize("seconds", [10**400, -1, "soon", None], ids=["no float", "past", "text", "none"])
async def test_a_wait_that_is_none_is_left_out_of_a_refusal(
    server: FakeApiServer, api: KubernetesApi, seconds: object
) -> None:
    """A program can write a Status, too, and has any numbers in it."""
    written = {
        "kind": "Status",
        "apiVersion": "v1",
        "message": "no",
        "details": {"retryAfterSeconds": seconds},
    }
    with pytest.raises(RefusedError, match="429: no") as caught:
        await api.proxied(with_program(server, 429, json.dumps(written).encode()))
    assert caught.value.retry_after_s is None


def test_the_wait_of_a_header_may_have_any_number_of_digits() -> None:
    assert refusal(503, b"no", "7").retry_after_s == 7
    assert refusal(503, b"no", "9" * 5000).retry_after_s is None


async def test_what_the_api_server_says_of_a_pod_is_its_refusal(
    server: FakeApiServer, api: KubernetesApi
) -> None:
    path = with_program(server, 200, b"")
    server.programs.clear()
    with pytest.raises(RefusedError, match="503 ServiceUnavailable: error trying to reach service"):
        await api.proxied(path)
    server.delete(PODS, "ns", "a")
    with pytest.raises(RefusedError) as caught:
        await api.proxied(path)
    assert caught.value.is_not_found


async def test_a_proxied_answer_has_a_bound_and_a_deadline(server: FakeApiServer, api: KubernetesApi) -> None:
    path = with_program(server, 200, b"x" * 101)
    assert (await api.proxied(path, max_answer_bytes=101)).status == 200
    with pytest.raises(UnreachableError, match="the answer exceeds 100 bytes"):
        await api.proxied(path, max_answer_bytes=100)
    server.fail("hang")
    with pytest.raises(UnreachableError, match=r"no answer within 0\.05 s"):
        await api.proxied(path, deadline_s=0.05)


# ------------------------------------------------------------ contexts


def test_a_context_is_told_and_further_kubeconfigs_are_merged(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", "http://127.0.0.1:1")
    other = json.loads(kubeconfig(tmp_path / "other", "http://127.0.0.1:2").read_text())
    other["contexts"][0] |= {"name": "more"}
    other["contexts"][0]["context"]["namespace"] = "shop"
    (tmp_path / "other").write_text(json.dumps(other))
    files = (tmp_path / "missing", (tmp_path / "other"))
    other["current-context"] = "more"
    (tmp_path / "other").write_text(json.dumps(other))
    for others in ((), files):
        found = context_of(ApiCredentials(first, None, others))
        assert found == KubeContext("test", "http://127.0.0.1:1", "test", ""), "the first word counts"
    assert context_of(ApiCredentials(first, "more", files)) == KubeContext(
        "more", "http://127.0.0.1:1", "test", "shop"
    )
    with pytest.raises(CredentialsError, match="Expected object with name none"):
        context_of(ApiCredentials(first, "none", files))
    with pytest.raises(CredentialsError, match="there is no file"):
        context_of(ApiCredentials(tmp_path / "missing"))
