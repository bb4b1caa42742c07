"""Attacks with a wrong identity, or with none. Nothing changes in the ledger, each is counted and logged."""

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hosting.client import Answered, HttpClient, Unanswered
from hosting.tls import TlsFiles
from scheduler.access import gate
from scheduler.access.callers import TokenIdentity
from tests.security.protected import FILE, ProtectedScheduler, protected, token
from tests.support.waiting import until
from tests.unit.hosting.test_tls import Authority, loaded
from tests.unit.scheduler_permits.service_worlds import ask, plain

AGENT = TokenIdentity("parley-system", "parley-agent", "n1")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[ProtectedScheduler]:
    async with protected(tmp_path) as found:
        yield found


async def unchanged(
    there: ProtectedScheduler, attack: Callable[[], Awaitable[object]], right: str, reason: str
) -> None:
    """The attack changes nothing, and was counted and logged as this."""
    before, counted = there.state(), there.refused().get((right, reason), 0)
    await attack()
    assert there.state() == before
    assert there.refused().get((right, reason), 0) > counted
    assert (right, reason) in [
        (each["right"], each["reason"]) for each in there.lines if each["event"] == "refused"
    ]


# ------------------------------------------------------------ certificates


async def test_the_agent_of_the_node_gets_its_permit(there: ProtectedScheduler) -> None:
    """Else the refusals below would say nothing."""
    assert await there.permit(there.credentials("n1.agents.parley")) == (200, "2")
    assert there.refused() == {}


async def test_wrong_nodes_agent(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        agent = there.credentials("n2.agents.parley")
        assert await there.permit(agent, "a") == (403, "wrong-node")
        assert await there.permit(agent, "a", podUID="another") == (403, "wrong-node")
        assert await there.permit(agent, "a", agentStartedAtMs=10**15) == (403, "wrong-node")

    await unchanged(there, attack, "permits", "wrong-node")
    assert await there.permit(there.credentials("n1.agents.parley")) == (200, "2")


async def test_wrong_nodes_agent_in_a_batch(there: ProtectedScheduler) -> None:
    """Its own VM is answered, the other one is not."""
    agent, instance = there.credentials("n2.agents.parley"), there.program._serving.core.config.instance
    own, other = (ask(name, 2, schedulerInstance=str(instance)) for name in ("b", "a"))
    before = there.program._serving.core.vms.by_uid("uid-a")
    assert before is not None
    kept = before.row.state
    status, answers = await there.call(agent, "POST", "/batch", b"[" + own + b"," + other + b"]")
    assert (status, [each["status"] for each in answers]) == (200, [200, 403])
    assert answers[1]["body"]["code"] == "wrong-node"
    after = there.program._serving.core.vms.by_uid("uid-a")
    assert after is not None
    assert after.row.state == kept
    assert there.refused() == {("permits", "wrong-node"): 1}


async def test_wrong_nodes_agent_listens_for_notices(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        agent = there.credentials("n2.agents.parley")
        status, answer = await there.call(agent, "GET", "/v1/notices?agent=n1")
        assert (status, answer["code"]) == (403, "wrong-node")

    await unchanged(there, attack, "permits", "wrong-node")


async def test_foreign_certificate(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        other = Authority(there.directory, "other")
        assert (await there.permit(there.credentials("n1.agents.parley", other)))[0] == 0

    await unchanged(there, attack, "known", "handshake")


async def test_expired_certificate(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        day = timedelta(days=1)
        now = datetime.now(UTC)
        files = there.credentials("n1.agents.parley", since=now - 3 * day, until=now - day)
        assert (await there.permit(files))[0] == 0

    await unchanged(there, attack, "known", "handshake")


async def test_certificate_that_is_not_yet_valid(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        day = timedelta(days=1)
        now = datetime.now(UTC)
        files = there.credentials("n1.agents.parley", since=now + day, until=now + 3 * day)
        assert (await there.permit(files))[0] == 0

    await unchanged(there, attack, "known", "handshake")


async def test_certificate_that_expires_while_its_connection_is_kept_open(
    there: ProtectedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attack() -> None:
        monkeypatch.setattr(there.access.gate, "_wall", lambda: 1e12)
        assert await there.permit(there.credentials("n1.agents.parley")) == (401, "unauthorised")

    await unchanged(there, attack, "permits", "certificate-ended")


async def test_certificate_of_a_name_that_nothing_is_granted_to(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        for name in ("n1.agents.parley.example.org", "agents.parley", "x.n1.agents.parle"):
            assert await there.permit(there.credentials(name)) == (403, "forbidden")

    await unchanged(there, attack, "permits", "unknown-certificate")


async def test_no_credential(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        assert await there.permit(there.nobody) == (401, "unauthorised")
        for path in ("/v1/state", "/metrics", "/v1/notices?agent=n1", "/v1/plugins", "/v1/explain/d/a"):
            assert (await there.call(there.nobody, "GET", path))[0] == 401
        assert (await there.call(there.nobody, "POST", "/v1/pools", b"{}"))[0] == 401

    await unchanged(there, attack, "permits", "no-credential")
    assert (await there.call(there.nobody, "GET", "/healthz"))[0] == 200


async def test_downgraded_tls(there: ProtectedScheduler) -> None:
    """Neither TLS 1.2 nor plain HTTP is spoken."""

    async def attack() -> None:
        old = loaded(there.credentials("n1.agents.parley"))
        context = old.client()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with HttpClient(tls=old) as client:
            for scheme in ("https", "http"):
                found = await client.call("GET", f"{scheme}://127.0.0.1:{there.port}/healthz", deadline_s=20)
                assert isinstance(found, Unanswered)

    await unchanged(there, attack, "known", "handshake")


# ------------------------------------------------------------ rights


@pytest.mark.parametrize(
    ("name", "method", "path", "right"),
    [
        ("n1.agents.parley", "GET", "/v1/state", "pages"),
        ("n1.agents.parley", "GET", "/metrics", "metrics"),
        ("n1.agents.parley", "DELETE", "/v1/pools/x", "write"),
        ("viewer.parley", "POST", "/", "permits"),
        ("viewer.parley", "POST", "/batch", "permits"),
        ("viewer.parley", "GET", "/metrics", "metrics"),
        ("viewer.parley", "POST", "/v1/pools", "write"),
        ("viewer.parley", "PUT", "/v1/pools/x", "write"),
        ("kube-scheduler.parley", "POST", "/", "permits"),
        ("kube-scheduler.parley", "GET", "/v1/nodes", "pages"),
    ],
)
async def test_a_caller_uses_the_right_of_another(
    there: ProtectedScheduler, name: str, method: str, path: str, right: str
) -> None:
    async def attack() -> None:
        body = b"{}" if method in ("POST", "PUT") else None
        assert (await there.call(there.credentials(name), method, path, body))[0] == 403

    await unchanged(there, attack, right, "scope")


async def test_a_web_page_writes_with_the_certificate_of_its_visitor(tmp_path: Path) -> None:
    text = FILE.replace("scopes: [pages]", "scopes: [pages, write]")
    async with protected(tmp_path, text) as there:

        async def attack() -> None:
            person, origin = there.credentials("viewer.parley"), {"Origin": "https://evil.example"}
            assert (await there.call(person, "POST", "/v1/pools", b"{}", origin))[0] == 403

        await unchanged(there, attack, "write", "origin")
        assert (await there.call(there.credentials("viewer.parley"), "POST", "/v1/pools", b"{}"))[0] == 400


# ------------------------------------------------------------ tokens


async def test_the_token_of_an_agents_pod_is_good_for_its_node_and_reviewed_once(
    there: ProtectedScheduler,
) -> None:
    bearer = token("agent-n1")
    there.reviewer.known[bearer] = AGENT
    for number in (1, 2, 3):
        assert await there.permit(there.nobody, bearer=bearer, number=number) == (200, "2")
    assert len(there.reviewer.asked) == 1

    async def attack() -> None:
        assert await there.permit(there.nobody, "b", bearer=bearer) == (403, "wrong-node")

    await unchanged(there, attack, "permits", "wrong-node")


async def test_token_of_another_account(there: ProtectedScheduler) -> None:
    async def attack() -> None:
        bearer = token("default")
        there.reviewer.known[bearer] = TokenIdentity("d", "default", "n1")
        assert await there.permit(there.nobody, bearer=bearer) == (403, "forbidden")

    await unchanged(there, attack, "permits", "unknown-account")


async def test_token_of_another_right(there: ProtectedScheduler) -> None:
    bearer = token("prometheus")
    there.reviewer.known[bearer] = TokenIdentity("monitoring", "prometheus", "n1")
    shown = {"Authorization": f"Bearer {bearer}"}
    assert (await there.call(there.nobody, "GET", "/metrics", headers=shown))[0] == 200

    async def attack() -> None:
        assert await there.permit(there.nobody, bearer=bearer) == (403, "forbidden")

    await unchanged(there, attack, "permits", "scope")


async def test_token_without_a_node(there: ProtectedScheduler) -> None:
    """Such a one was made by hand, for no pod."""

    async def attack() -> None:
        bearer = token("by hand")
        there.reviewer.known[bearer] = TokenIdentity("parley-system", "parley-agent")
        assert await there.permit(there.nobody, bearer=bearer) == (403, "wrong-node")

    await unchanged(there, attack, "permits", "wrong-node")


async def test_token_of_a_deleted_pod(there: ProtectedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server believes it no more, and what it said before counts for less than a minute."""
    bearer = token("agent-n1")
    there.reviewer.known[bearer] = AGENT
    assert await there.permit(there.nobody, bearer=bearer) == (200, "2")
    del there.reviewer.known[bearer]
    cache = there.access._cache
    assert cache is not None
    now_s = cache.clock()
    monkeypatch.setattr(cache, "clock", lambda: now_s + 60 - gate.REVIEW_S)

    async def attack() -> None:
        assert await there.permit(there.nobody, bearer=bearer, number=2) == (401, "unauthorised")

    await unchanged(there, attack, "permits", "token")


@pytest.mark.parametrize(
    "bearer",
    [
        token("expired", until_s=1e9),
        token("for the API server", audience="https://kubernetes.default.svc"),
        "0123456789abcdef",
        "a.b.c",
        "a." + "é" * 4 + ".c",
        "x" * 5000,
        f"a.{base64.urlsafe_b64encode(b'[' * 3000).decode()}.c",
    ],
    ids=["expired", "another audience", "no token of an account", "no JSON", "no ASCII", "long", "nested"],
)
async def test_token_that_cannot_be_valid_costs_no_review(there: ProtectedScheduler, bearer: str) -> None:
    async def attack() -> None:
        headers = {"Authorization": f"Bearer {bearer}"}
        assert (await there.call(there.nobody, "GET", "/v1/nodes", headers=headers))[0] in (400, 401)

    before = there.state()
    await attack()
    assert there.state() == before
    assert there.reviewer.asked == []


async def test_token_cannot_be_checked(there: ProtectedScheduler) -> None:
    """Nobody gets in while the API server does not answer, and who comes again later does."""
    bearer = token("agent-n1")
    there.reviewer.known[bearer] = AGENT
    there.reviewer.is_down = True

    async def attack() -> None:
        assert await there.permit(there.nobody, bearer=bearer) == (503, "cluster-unreachable")

    await unchanged(there, attack, "permits", "unchecked")
    there.reviewer.is_down = False
    assert await there.permit(there.nobody, bearer=bearer) == (200, "2")


async def test_no_credential_is_in_the_log(there: ProtectedScheduler) -> None:
    bearer = token("secret subject")
    await there.permit(there.nobody, bearer=bearer)
    await there.call(there.nobody, "GET", "/metrics", headers={"Parley-Token": bearer})
    assert bearer not in str(there.lines)
    assert len(there.lines) == 2


# ------------------------------------------------------------ published agents


PUBLISHED = FILE + "published: {{port: 0, peers: [{{addresses: [127.0.0.1], nodes: [n1]}}]}}\n"


async def test_published_agents_are_known_by_address_and_ask_for_their_nodes_only(tmp_path: Path) -> None:
    async with protected(tmp_path, PUBLISHED) as there:
        address = next(
            str(each["address"]) for each in there.lines if "published agents are served" in each["event"]
        )

        async def asked(name: str) -> int:
            async with HttpClient() as client:
                found = await client.call("POST", address, body=plain(name, 2), deadline_s=20)
            return found.status if isinstance(found, Answered) else 0

        async def attack() -> None:
            assert await asked("b") == 403

        await unchanged(there, attack, "permits", "wrong-node")
        before = there.state()
        async with HttpClient() as client:
            forged = await client.call(
                "POST", address, body=ask("a", 4, agentStartedAtMs=10**12), deadline_s=20
            )
        assert isinstance(forged, Answered)
        assert (forged.status, there.state()) == (403, before), "nobody takes an extended agent's place there"


# ------------------------------------------------------------ the file


async def test_a_caller_that_is_taken_out_of_the_file_is_refused_from_then_on(tmp_path: Path) -> None:
    async with protected(tmp_path) as there:
        agent = there.credentials("n1.agents.parley")
        assert await there.permit(agent) == (200, "2")
        path = tmp_path / "access.yaml"
        kept = [line for line in path.read_text().splitlines() if "agents.parley" not in line]
        path.write_text("\n".join(kept))
        await until(lambda: any(each["event"] == "access file read again" for each in there.lines))

        async def attack() -> None:
            assert await there.permit(agent, number=2) == (403, "forbidden")

        await unchanged(there, attack, "permits", "unknown-certificate")
        path.write_text("callers: [{scopes: [all]}]")
        await until(lambda: any("access file not usable" in each["event"] for each in there.lines))
        assert await there.permit(agent, number=3) == (403, "forbidden"), "what was read before stays"


async def test_renewed_certificates_are_taken_up_and_an_old_authority_is_believed_no_more(
    tmp_path: Path,
) -> None:
    async with protected(tmp_path) as there:
        before = there.credentials("n1.agents.parley")
        assert (await there.permit(before))[0] == 200
        renewed = Authority(tmp_path / "renewed", "renewed")
        there.authority.ca.write_bytes(renewed.ca.read_bytes())
        await until(lambda: any(each["event"] == "certificates read again" for each in there.lines))
        assert (await there.permit(before, number=2))[0] == 0
        after: TlsFiles = there.credentials("n1.agents.parley", renewed)
        assert (await there.permit(after, number=2))[0] == 200
