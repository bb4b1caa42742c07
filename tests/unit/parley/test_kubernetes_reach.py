"""The way through the API server: who is asked, with what, and what is said where nobody answers."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.connection import ApiCall, ApiCredentials
from hosting.kubernetes.errors import CredentialsError
from hosting.kubernetes.resources import PODS, SECRETS
from parley.reach.installation import Installation
from parley.reach.kubernetes import KubernetesReach
from parley.reach.ports import Got, NoAnswer
from tests.support.kube_api import FakeApiServer, Program
from tests.support.kube_store import RefusalError

HERE = Installation("prod", "https://api.example:6443", "parley-system")
TOKEN = "a-token-of-the-viewers"
NOT_LEADER = {"status": 503, "title": "x", "detail": "another scheduler leads", "code": "not-leader"}


def says(document: Mapping[str, Any], status: int = 200) -> Program:
    """A program that always answers the same."""
    return lambda _call, _path: (status, json.dumps(document).encode())


def wants_token(call: ApiCall, path: str) -> tuple[int, bytes]:
    """An agent with a token, which says what it was asked for."""
    if call.headers.get("Parley-Token") != TOKEN:
        return 401, b"a bearer token is needed (--token-file)\n"
    return 200, json.dumps({"path": path, "query": dict(call.query)}).encode()


class Cluster:
    """A fake API server with pods of Parley."""

    def __init__(self) -> None:
        self.server = FakeApiServer()

    def add(
        self,
        program: str,
        name: str,
        *,
        node: str = "node-1",
        address: str = "10.0.0.1",
        leads: bool = False,
        ready: bool = True,
        phase: str = "Running",
        ports: tuple[tuple[str, int], ...] = (),
        answers: Program | None = None,
    ) -> None:
        """A pod; with `answers` its program listens."""
        labels = {"app.kubernetes.io/name": program} | ({names.ROLE: names.LEADER} if leads else {})
        named = ports or ((("agent", 10300),) if program == "parley-agent" else (("permits", 10299),))
        container = {
            "name": "main",
            "ports": [{"name": each, "containerPort": port} for each, port in named],
        }
        self.server.put(
            PODS,
            {
                "metadata": {"namespace": "parley-system", "name": name, "labels": labels},
                "spec": {"nodeName": node, "containers": [container]},
                "status": {
                    "phase": phase,
                    "podIP": address,
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                },
            },
        )
        if answers is not None:
            scheme = "https" if dict(named).get("tls") else "http"
            port = dict(named).get("tls") or named[0][1]
            self.server.programs[f"{scheme}:{name}:{port}"] = answers

    def share(self, token: str) -> None:
        """Put a token into the Secret."""
        data = {"token": base64.b64encode(token.encode()).decode()}
        metadata = {"namespace": "parley-system", "name": "parley-viewers"}
        self.server.put(SECRETS, {"metadata": metadata, "data": data})

    def reach(self) -> KubernetesReach:
        return KubernetesReach(self.server.api(), HERE)

    def asked(self) -> list[str]:
        return [call.path.split("/")[6] for call in self.server.calls if "/proxy/" in call.path]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def refuse(status: int, reason: str, message: str = "", *, where: str = "") -> Any:
    """A hook: the API server refuses calls whose path holds `where`."""

    def hook(call: ApiCall) -> None:
        if where in call.path:
            raise RefusalError(status, reason, message)

    return hook


# ------------------------------------------------------------ the scheduler


async def test_the_scheduler_with_the_leaders_label_is_asked(cluster: Cluster) -> None:
    cluster.add("parley-scheduler", "s-1", answers=says(NOT_LEADER, 503))
    cluster.add("parley-scheduler", "s-2", leads=True, answers=says({"vm": "ns/a"}))
    async with cluster.reach() as reach:
        assert await reach.scheduler("/v1/explain/ns/a?n=3") == Got({"vm": "ns/a"}, "scheduler s-2")
    assert cluster.asked() == ["http:s-2:10299"]
    (call,) = (each for each in cluster.server.calls if "/proxy/" in each.path)
    assert (call.path.partition("/proxy")[2], dict(call.query)) == ("/v1/explain/ns/a", {"n": "3"})
    assert call.headers == {}, "no token travels in the clear to one that wants none"


async def test_a_scheduler_with_tls_is_shown_the_token(cluster: Cluster) -> None:
    cluster.share(TOKEN)
    cluster.add("parley-scheduler", "s-1", leads=True, ports=(("tls", 10299),), answers=wants_token)
    async with cluster.reach() as reach:
        assert isinstance(await reach.scheduler("/v1/nodes"), Got)
    assert cluster.asked() == ["https:s-1:10299"]


async def test_a_follower_names_the_leader(cluster: Cluster) -> None:
    """The label is late; three schedulers are there, and the third would be asked last."""
    follower = says(NOT_LEADER | {"leader": "http://10.0.0.3:10299"}, 503)
    cluster.add("parley-scheduler", "s-1", address="10.0.0.1", leads=True, answers=follower)
    cluster.add("parley-scheduler", "s-2", address="10.0.0.2", answers=follower)
    cluster.add("parley-scheduler", "s-3", address="10.0.0.3", ready=False, answers=says({}))
    async with cluster.reach() as reach:
        assert await reach.scheduler("/v1/nodes") == Got({}, "scheduler s-3")
    assert cluster.asked() == ["http:s-1:10299", "http:s-3:10299"]


async def test_a_leader_that_was_replaced_is_looked_for_again(cluster: Cluster) -> None:
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({"number": 1}))
    async with cluster.reach() as reach:
        assert isinstance(await reach.scheduler("/v1/nodes"), Got)
        cluster.server.delete(PODS, "parley-system", "s-1")
        cluster.add("parley-scheduler", "s-2", leads=True, answers=says({"number": 2}))
        assert await reach.scheduler("/v1/nodes") == Got({"number": 2}, "scheduler s-2")


async def test_where_nobody_leads_the_word_of_a_follower_is_told(cluster: Cluster) -> None:
    for number in (1, 2):
        cluster.add("parley-scheduler", f"s-{number}", answers=says(NOT_LEADER, 503))
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert isinstance(answer, NoAnswer)
    assert (answer.status, answer.code) == (503, "not-leader")
    assert cluster.asked() == ["http:s-2:10299", "http:s-1:10299"]


async def test_a_scheduler_whose_port_is_closed_is_told_with_what_may_close_it(cluster: Cluster) -> None:
    cluster.add("parley-scheduler", "s-1", leads=True)
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert answer == NoAnswer(
        "scheduler s-1: the API server cannot reach its port 10299: connection refused. Does a NetworkPolicy keep the API server out?"
    )


@pytest.mark.parametrize(
    ("phase", "fault"),
    [
        (
            "",
            "context prod: there is no scheduler in the namespace parley-system; --parley-namespace names another",
        ),
        ("Pending", "context prod: no scheduler runs in parley-system: s-1 is Pending"),
    ],
)
async def test_a_missing_scheduler_is_told(cluster: Cluster, phase: str, fault: str) -> None:
    if phase:
        cluster.add("parley-scheduler", "s-1", phase=phase)
    async with cluster.reach() as reach:
        assert await reach.scheduler("/v1/nodes") == NoAnswer(fault)


# ------------------------------------------------------------ agents


async def test_agents_go_by_their_nodes_and_are_shown_the_token(cluster: Cluster) -> None:
    cluster.share(TOKEN)
    cluster.add("parley-agent", "a-2", node="node-2", answers=wants_token)
    cluster.add("parley-agent", "a-1", node="node-1", answers=wants_token)
    async with cluster.reach() as reach:
        assert await reach.agents() == ("node-1", "node-2")
        for node in ("node-1", "node-2"):
            answer = await reach.agent(node, "/v1/vms?brief=1")
            assert answer == Got({"path": "/v1/vms", "query": {"brief": "1"}}, f"agent of {node}")
    secrets = [call for call in cluster.server.calls if "secrets" in call.path]
    assert len(secrets) == 1, "it is read once"


async def test_one_node_costs_no_list_of_all_agents(cluster: Cluster) -> None:
    cluster.add("parley-agent", "a-1", node="node-1", answers=says({"vms": []}))
    async with cluster.reach() as reach:
        assert await reach.agent_of("node-1") == "node-1"
        assert await reach.agent_of("node-9") is None
        assert isinstance(await reach.agent("node-1", "/v1/vms"), Got)
    lists = [call for call in cluster.server.calls if call.path.endswith("/pods")]
    assert [call.query.get("fieldSelector") for call in lists] == [
        "spec.nodeName=node-1",
        "spec.nodeName=node-9",
    ]


async def test_while_an_agent_is_replaced_the_one_that_stays_is_asked(cluster: Cluster) -> None:
    cluster.add("parley-agent", "z-old", answers=says({"old": True}))
    held = {"metadata": {"finalizers": ["test/stays"]}}
    await cluster.server.api().patch(PODS, "parley-system", "z-old", held)
    cluster.server.delete(PODS, "parley-system", "z-old")
    cluster.add("parley-agent", "a-new", answers=says({"old": False}))
    async with cluster.reach() as reach:
        assert await reach.agents() == ("node-1",)
        assert await reach.agent("node-1", "/v1/vms") == Got({"old": False}, "agent of node-1")
        cluster.server.delete(PODS, "parley-system", "a-new")
        cluster.add("parley-agent", "a-newer", answers=says({"newer": True}))
        assert await reach.agent("node-1", "/v1/vms") == Got({"newer": True}, "agent of node-1")


async def test_an_agent_that_does_not_run_is_told(cluster: Cluster) -> None:
    cluster.add("parley-agent", "a-1", phase="Pending")
    cluster.add("parley-agent", "a-2", node="node-2")
    async with cluster.reach() as reach:
        assert await reach.agent("node-1", "/v1/vms") == NoAnswer("agent of node-1: its pod a-1 is Pending")
        answer = await reach.agent("node-2", "/v1/vms")
        assert isinstance(answer, NoAnswer)
        assert (
            "agent of node-2: the API server cannot reach its port 10300: connection refused" in answer.fault
        )
        assert await reach.agent("node-3", "/v1/vms") == NoAnswer(
            "agent of node-3: there is no pod of an agent on this node"
        )


async def test_no_agents_are_told(cluster: Cluster) -> None:
    async with cluster.reach() as reach:
        assert await reach.agents() == NoAnswer(
            "context prod: there are no agents in the namespace parley-system; --parley-namespace names another"
        )


async def test_a_port_with_tls_goes_before_the_plain_one(cluster: Cluster) -> None:
    ports = (("agent", 10300), ("tls", 10443))
    cluster.add("parley-agent", "a-1", ports=ports, answers=says({}))
    async with cluster.reach() as reach:
        assert isinstance(await reach.agent("node-1", "/v1/vms"), Got)
    assert cluster.asked() == ["https:a-1:10443"]


async def test_many_pods_are_listed_in_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.reach.kubernetes.PAGE", 2)
    for number in range(5):
        cluster.add("parley-agent", f"a-{number}", node=f"node-{number}")
    async with cluster.reach() as reach:
        agents = await reach.agents()
    assert agents == tuple(f"node-{number}" for number in range(5))
    assert len(cluster.server.calls) == 3


async def test_a_list_that_does_not_end_is_a_fault_and_no_part_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.reach.kubernetes.PAGE", 2)
    monkeypatch.setattr("parley.reach.kubernetes.MAX_PAGES", 2)
    for number in range(5):
        cluster.add("parley-agent", f"a-{number}", node=f"node-{number}")
    async with cluster.reach() as reach:
        assert await reach.agents() == NoAnswer(
            "context prod: the list of pods parley-agent in parley-system does not end after 2 pages"
        )


# ------------------------------------------------------------ the token


async def test_a_token_that_was_renewed_is_read_again(cluster: Cluster) -> None:
    cluster.share("an-older-token-of-viewers")
    cluster.add("parley-agent", "a-1", answers=wants_token)
    async with cluster.reach() as reach:
        answer = await reach.agent("node-1", "/v1/vms")
        assert isinstance(answer, NoAnswer)
        assert answer.status == 401
        cluster.share(TOKEN)
        assert isinstance(await reach.agent("node-1", "/v1/vms"), Got)


@pytest.mark.parametrize(
    ("token", "refusal", "said"),
    [
        (
            None,
            None,
            "agent of node-1 answers viewers only, who have a token: the Secret parley-viewers in parley-system is missing (docs/guides/kubernetes.md makes one)",
        ),
        (
            TOKEN,
            refuse(
                403,
                "Forbidden",
                'secrets "parley-viewers" is forbidden: User "jane" cannot get',
                where="secrets",
            ),
            (
                "context prod: the right of jane to get secrets/parley-viewers in parley-system is missing; the Role parley-viewer there "
                "gives it. To check: kubectl auth can-i get secrets/parley-viewers --namespace parley-system --context prod"
            ),
        ),
        (
            "short",
            None,
            "the Secret parley-viewers in parley-system: its entry token must hold a token of 16",
        ),
        ("another-token-than-theirs", None, "(the Secret parley-viewers holds another token than its file"),
    ],
)
async def test_an_agent_that_wants_the_token_is_told_with_why_there_is_none(
    cluster: Cluster, token: str | None, refusal: Any, said: str
) -> None:
    if token is not None:
        cluster.share(token)
    if refusal is not None:
        cluster.server.hooks.append(refusal)
    cluster.add("parley-agent", "a-1", answers=wants_token)
    async with cluster.reach() as reach:
        answer = await reach.agent("node-1", "/v1/vms")
    assert isinstance(answer, NoAnswer)
    assert answer.status == 401
    assert said in answer.fault
    assert TOKEN not in answer.fault
    assert "another-token" not in answer.fault


async def test_an_agent_without_a_token_says_what_is_missing(cluster: Cluster) -> None:
    cluster.add("parley-agent", "a-1", answers=lambda _call, _path: (403, b"served to this machine only\n"))
    async with cluster.reach() as reach:
        answer = await reach.agent("node-1", "/v1/vms")
    assert isinstance(answer, NoAnswer)
    assert answer.status == 403
    assert "the Secret parley-viewers in parley-system is missing" in answer.fault


# ------------------------------------------------------------ the API server's own word


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        (
            refuse(401, "Unauthorized", "Unauthorized"),
            (
                "context prod: the API server does not accept the credentials (401): they may have expired. Log in again, or choose "
                "another context"
            ),
        ),
        (
            refuse(403, "Forbidden", 'pods is forbidden: User "jane" cannot list resource "pods"'),
            (
                "context prod: the right of jane to list pods in parley-system is missing; the Role parley-viewer there gives it. "
                "To check: kubectl auth can-i list pods --namespace parley-system --context prod"
            ),
        ),
        (
            refuse(403, "Forbidden", 'User "jane" cannot get resource "pods/proxy"', where="/proxy/"),
            (
                "context prod: the right of jane to get pods/proxy in parley-system is missing; the Role parley-viewer there gives it. "
                "To check: kubectl auth can-i get pods --subresource proxy --namespace parley-system --context prod"
            ),
        ),
        (
            refuse(429, "TooManyRequests", where="/proxy/"),
            "context prod: the API server is busy (429); try again",
        ),
        (
            refuse(500, "InternalError", "oh no"),
            "context prod: the API server refuses: 500 InternalError: oh no",
        ),
    ],
)
async def test_what_the_api_server_refuses_names_context_and_right(
    cluster: Cluster, hook: Any, fault: str
) -> None:
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({}))
    cluster.server.hooks.append(hook)
    async with cluster.reach() as reach:
        assert await reach.scheduler("/v1/nodes") == NoAnswer(fault)


async def test_an_api_server_that_is_away_is_told_with_its_address(cluster: Cluster) -> None:
    cluster.server.is_down = True
    async with cluster.reach() as reach:
        answers = (await reach.scheduler("/"), await reach.agents(), await reach.agent("node-1", "/"))
    for answer in answers:
        assert isinstance(answer, NoAnswer)
        assert answer.fault.startswith(
            "context prod: the API server https://api.example:6443 cannot be reached: "
        )


async def test_a_call_that_is_not_answered_ends(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.reach.kubernetes.DEADLINE_S", 0.01)
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({}))
    cluster.server.fail("hang", lambda call: "/proxy/" in call.path)
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert answer == NoAnswer(
        "context prod: scheduler s-1 did not answer through the API server: no answer within 0.01 s"
    )


async def test_a_leader_whose_node_died_is_passed_over_and_not_asked_first_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod bears the label and is listed as running: nobody refuses a connection, so that a call to it ends by the deadline only."""
    monkeypatch.setattr("parley.reach.kubernetes.DEADLINE_S", 0.01)
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({"number": 1}))
    cluster.add("parley-scheduler", "s-2", address="10.0.0.2", answers=says({"number": 2}))
    async with cluster.reach() as reach:
        assert await reach.scheduler("/v1/nodes") == Got({"number": 1}, "scheduler s-1")
        cluster.server.fail("hang", lambda call: "http:s-1:" in call.path, times=9)
        for _ in range(2):
            assert await reach.scheduler("/v1/nodes") == Got({"number": 2}, "scheduler s-2")
    assert [each.split(":")[1] for each in cluster.asked()] == ["s-1", "s-1", "s-2", "s-2"]


async def test_a_leader_that_is_silent_is_told_rather_than_who_does_not_lead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.reach.kubernetes.DEADLINE_S", 0.01)
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({}))
    cluster.add("parley-scheduler", "s-2", address="10.0.0.2", answers=says(NOT_LEADER, 503))
    cluster.server.fail("hang", lambda call: "http:s-1:" in call.path, times=9)
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert isinstance(answer, NoAnswer)
    assert "scheduler s-1 did not answer" in answer.fault


async def test_after_a_failure_schedulers_are_looked_for_anew(cluster: Cluster) -> None:
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({"number": 1}))
    async with cluster.reach() as reach:
        assert isinstance(await reach.scheduler("/v1/nodes"), Got)
        cluster.server.is_down = True
        assert isinstance(await reach.scheduler("/v1/nodes"), NoAnswer)
        cluster.server.is_down = False
        cluster.add("parley-scheduler", "s-2", address="10.0.0.2", leads=True, answers=says({"number": 2}))
        cluster.server.programs["http:s-1:10299"] = says(NOT_LEADER, 503)
        assert await reach.scheduler("/v1/nodes") == Got({"number": 2}, "scheduler s-2")
    assert [each.split(":")[1] for each in cluster.asked()] == ["s-1", "s-1", "s-2"]


async def test_an_agent_that_is_silent_is_asked_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod of another name may do better; the same one would cost the deadline again."""
    monkeypatch.setattr("parley.reach.kubernetes.DEADLINE_S", 0.01)
    cluster.add("parley-agent", "a-1", answers=says({}))
    cluster.server.fail("hang", lambda call: "/proxy/" in call.path, times=9)
    async with cluster.reach() as reach:
        answer = await reach.agent("node-1", "/v1/vms")
    assert isinstance(answer, NoAnswer)
    assert "agent of node-1 did not answer through the API server" in answer.fault
    assert cluster.asked() == ["http:a-1:10300"]


async def test_an_answer_without_end_is_cut(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.reach.kubernetes.MAX_ANSWER_BYTES", 100)
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says({"long": "x" * 100}))
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert isinstance(answer, NoAnswer)
    assert "the answer exceeds 100 bytes" in answer.fault


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'User "\x1b[2Jjane" is not allowed'),
        (404, "\x1b]0;title\x07 is missing"),
        (503, "error trying to reach service: dial tcp: connect: \x1b[31mno"),
        (500, "long " * 1000 + "\x1b[31m"),
    ],
)
async def test_a_status_of_the_program_behind_the_proxy_does_nothing_to_a_terminal(
    cluster: Cluster, status: int, message: str
) -> None:
    """The API server's own word cannot be told from that of a program which writes a Status, too."""
    forged = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message}
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says(forged, status))
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert isinstance(answer, NoAnswer)
    assert answer.fault.isprintable()
    assert len(answer.fault) <= 1000


async def test_an_error_of_the_program_is_its_own_and_not_the_api_servers(cluster: Cluster) -> None:
    problem = {"status": 403, "title": "x", "detail": "not for you", "code": "forbidden"}
    cluster.add("parley-scheduler", "s-1", leads=True, answers=says(problem, 403))
    async with cluster.reach() as reach:
        answer = await reach.scheduler("/v1/nodes")
    assert isinstance(answer, NoAnswer)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "not for you" in answer.fault


class _Unusable(FakeApiServer):
    async def connect(self) -> None:
        raise CredentialsError("the credentials for Kubernetes cannot be used: exec: process returned 1")


async def test_credentials_that_cannot_be_used_are_told_with_each_call() -> None:
    api = KubernetesApi(ApiCredentials(), user_agent="test", connection=_Unusable())
    async with KubernetesReach(api, HERE) as reach:
        told = NoAnswer(
            "context prod: the credentials for Kubernetes cannot be used: exec: process returned 1"
        )
        assert await reach.scheduler("/v1/nodes") == told
        assert await reach.agents() == told
        assert await reach.agent("node-1", "/v1/vms") == told
        assert await reach.agent_of("node-1") is None
