"""Attacks between guests and the agent of their node: nothing of them reaches a runner or the guest, each is counted, and each is logged."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from agent.core.events import InformantHeard, TryUpscaleReceived
from agent.core.state import RegistrationPhase
from agent.daemon.callbacks import BURST, Callbacks
from agent.peers.informant import InformantLink
from agent.runner.runner import Runner
from hosting import metrics
from hosting.client import HttpClient
from hosting.server import Reply, Request, Server
from hosting.signed_link import OF_AGENT, OF_INFORMANT, SignedLink
from hosting.signing import HEADER, Secret
from informant.service.informant import Informant
from informant.service.limits import Guest
from informant.settings import InformantSettings
from protocol.versions import InformantProtoVersion
from protocol.wire import PodName
from tests.support.amounts import cu
from tests.unit.agent.driver import VM
from tests.unit.agent.peers import World
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.informant.guests import Machine

MINE, THEIRS = UUID(int=9, version=4), UUID(int=10, version=4)


def secret_file(directory: Path, name: str) -> Path:
    file = directory / name
    file.write_text(Secret(name.encode().ljust(32, b".")).written())
    file.chmod(0o600)
    return file


def registered(runner: Runner, registration: UUID) -> Runner:
    phase, version = RegistrationPhase.ACTIVE, InformantProtoVersion.V1_1
    link = replace(runner.state.informant, registration=registration, phase=phase, version=version)
    runner.state = replace(runner.state, informant=link)
    return runner


def guest_of(directory: Path, name: str, clock: Callable[[], int] | None = None) -> SignedLink:
    """What a guest signs with, by its own secret."""
    file = secret_file(directory, name)
    return SignedLink(file, OF_INFORMANT) if clock is None else SignedLink(file, OF_INFORMANT, (clock,))


@dataclass
class Node:
    """An agent with two VMs, each with a secret, and a third one without."""

    directory: Path
    mine: Runner = field(init=False)
    theirs: Runner = field(init=False)
    plain: Runner = field(init=False)
    callbacks: Callbacks = field(init=False)
    lines: Lines = field(init=False)
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        def runner(name: str, registration: UUID, *, has_secret: bool = True) -> Runner:
            signed = SignedLink(secret_file(self.directory, name), OF_AGENT) if has_secret else None
            vm = replace(VM, pod=PodName(name, "default"))
            return registered(World(vm, signed=signed).runner, registration)

        self.mine, self.theirs = runner("mine", MINE), runner("theirs", THEIRS)
        self.plain = runner("plain", UUID(int=11, version=4), has_secret=False)
        log, self.lines = recorded()
        runners = [self.mine, self.theirs, self.plain]
        self.callbacks = Callbacks(lambda: runners, log, lambda: self.now_s)

    def request(self, name: str, registration: UUID, signer: SignedLink | None, **said: object) -> Request:
        body = {"expectedID": str(registration), "cpu": True, "memory": True, **said} if name != "id" else {}
        path, content = f"/agents/{registration}/{name}", json.dumps(body).encode()
        method = "GET" if name == "id" else "POST"
        headers = signer.headers(registration, method, path, content) if signer is not None else {}
        lower = {key.lower(): value for key, value in headers.items()}
        return Request(method, path, content, lower, {"agent_id": str(registration)}, peer="10.0.0.9")

    async def send(self, request: Request) -> int:
        name = request.path.rpartition("/")[2]
        (route,) = [each for each in self.callbacks.routes() if each.path.endswith(f"/{name}")]
        answer = await route.answer(request)
        assert isinstance(answer, Reply)
        return answer.status

    def refused(self) -> dict[str, float]:
        """The agent's metric of refused calls, by reason."""
        (family,) = self.callbacks.families()
        return {labels[0]: value for labels, value in family.samples}

    def is_untouched(self) -> bool:
        return all(each._inbox.empty() for each in (self.mine, self.theirs, self.plain))

    def logged(self) -> list[tuple[str, str]]:
        return [(each.get("vm", ""), each["reason"]) for each in self.lines if each["log_level"] == "warning"]


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


CALLS = ("id", "resume", "suspend", "try-upscale")


@pytest.mark.parametrize("name", CALLS)
async def test_a_guest_is_heard_by_its_own_secret(node: Node, tmp_path: Path, name: str) -> None:
    assert await node.send(node.request(name, MINE, guest_of(tmp_path, "mine"))) == 200
    assert not node.mine._inbox.empty()
    assert (node.refused(), node.lines) == ({}, [])


@pytest.mark.parametrize("name", CALLS)
async def test_an_unsigned_callback(node: Node, name: str) -> None:
    assert await node.send(node.request(name, MINE, None)) == 401
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"unsigned": 1}, [("default/mine", "unsigned")])


@pytest.mark.parametrize("name", CALLS)
async def test_a_callback_signed_by_another_vms_secret(node: Node, tmp_path: Path, name: str) -> None:
    assert await node.send(node.request(name, MINE, guest_of(tmp_path, "theirs"))) == 401
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"forged": 1}, [("default/mine", "forged")])


async def test_a_guest_that_asks_for_another_vm(node: Node, tmp_path: Path) -> None:
    """It has learned the other's registration, signs by its own secret, and names either of them."""
    own = guest_of(tmp_path, "mine")
    for_other = node.request("try-upscale", THEIRS, own)
    as_itself = structs.replace(for_other, headers=node.request("try-upscale", MINE, own).headers)
    assert [await node.send(each) for each in (for_other, as_itself)] == [401, 401]
    body = node.request("try-upscale", MINE, own, expectedID=str(THEIRS))
    assert await node.send(body) == 404
    assert node.is_untouched()
    assert node.refused() == {"forged": 2, "unknown": 1}
    assert node.logged() == [("default/theirs", "forged")] * 2 + [("default/mine", "unknown")]


@pytest.mark.parametrize("part", ["path", "body", "method", "digest", "number", "time"])
async def test_a_forged_callback(node: Node, tmp_path: Path, part: str) -> None:
    good = node.request("try-upscale", MINE, guest_of(tmp_path, "mine"))
    version, registration, unix_ms, number, digest = good.headers[HEADER.lower()].split()
    words = {
        "digest": f"{version} {registration} {unix_ms} {number} {digest[::-1]}",
        "number": f"{version} {registration} {unix_ms} {int(number) + 1} {digest}",
        "time": f"{version} {registration} {int(unix_ms) + 1} {number} {digest}",
    }
    signed = {HEADER.lower(): words.get(part, good.headers[HEADER.lower()])}
    forged = {
        "path": structs.replace(good, path=good.path.replace("try-upscale", "suspend")),
        "body": structs.replace(good, body=good.body.replace(b"true", b"false")),
        "method": structs.replace(good, method="PUT"),
    }.get(part, structs.replace(good, headers=signed))
    assert await node.send(forged) == 401
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"forged": 1}, [("default/mine", "forged")])
    assert await node.send(good) == 200, "the true one is still believed"


async def test_a_replayed_callback(node: Node, tmp_path: Path) -> None:
    guest = guest_of(tmp_path, "mine")
    old, new = (node.request("try-upscale", MINE, guest) for _ in range(2))
    assert [await node.send(each) for each in (new, new, old)] == [200, 401, 401]
    event = node.mine._inbox.get_nowait()
    assert isinstance(event, TryUpscaleReceived)
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"replayed": 2}, [("default/mine", "replayed")] * 2)


async def test_a_callback_of_an_earlier_registration(node: Node, tmp_path: Path) -> None:
    old = node.request("suspend", MINE, guest_of(tmp_path, "mine"))
    registered(node.mine, UUID(int=12, version=4))
    assert await node.send(old) == 404
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"unknown": 1}, [("", "unknown")])


@pytest.mark.parametrize("off_ms", [-61_000, 61_000])
async def test_a_callback_of_another_time(node: Node, tmp_path: Path, off_ms: int) -> None:
    guest = guest_of(tmp_path, "mine", lambda: int(time.time() * 1000) + off_ms)
    assert await node.send(node.request("suspend", MINE, guest)) == 401
    assert node.is_untouched()
    assert (node.refused(), node.logged()) == ({"clock": 1}, [("default/mine", "clock")])
    assert "s behind" in node.lines[0]["why"] or "s ahead" in node.lines[0]["why"]


async def test_a_vm_whose_secret_is_lost_is_not_heard_without_it(node: Node, tmp_path: Path) -> None:
    request = node.request("resume", MINE, None)
    (tmp_path / "mine").unlink()
    assert await node.send(request) == 401
    assert node.is_untouched()
    assert node.refused() == {"no-secret": 1}


@pytest.mark.parametrize("name", ["mine", "plain"])
async def test_a_guest_that_floods(node: Node, tmp_path: Path, name: str) -> None:
    """Also one without a secret. Its neighbours are heard as before, and its log lines are few."""
    registration = MINE if name == "mine" else UUID(int=11, version=4)
    flooding = guest_of(tmp_path, "mine") if name == "mine" else None
    statuses = [await node.send(node.request("id", registration, flooding)) for _ in range(1000)]
    assert (statuses.count(200), statuses.count(429)) == (BURST, 1000 - BURST)
    assert (node.mine if name == "mine" else node.plain)._inbox.qsize() == BURST
    assert await node.send(node.request("id", THEIRS, guest_of(tmp_path, "theirs"))) == 200
    assert node.theirs._inbox.get_nowait() == InformantHeard(THEIRS)
    assert node.refused() == {"flood": 1000 - BURST}
    assert set(node.logged()) == {(f"default/{name}", "flood")}
    assert len(node.lines) <= 10
    node.now_s += 1.0
    assert await node.send(node.request("id", registration, flooding)) == 200, "it is heard again"


async def test_a_flood_of_forged_callbacks_takes_nothing_from_its_victim(node: Node, tmp_path: Path) -> None:
    for _ in range(200):
        assert await node.send(node.request("suspend", MINE, None)) == 401
    assert node.is_untouched()
    assert await node.send(node.request("try-upscale", MINE, guest_of(tmp_path, "mine"))) == 200
    assert node.refused() == {"unsigned": 200}


async def test_the_metrics_page_tells_of_refusals(node: Node) -> None:
    await node.send(node.request("suspend", MINE, None))
    page = await metrics.handler(lambda: list(node.callbacks.families()))(Request("GET", "/metrics"))
    assert isinstance(page, Reply)
    assert b'parley_agent_callbacks_refused_total{reason="unsigned"} 1.0' in page.body
    assert list(text_string_to_metric_families(page.body.decode()))


# ---------------------------------------------------------------- the informant's port


@dataclass
class GuestWithSecret:
    informant: Informant
    machine: Machine
    lines: Lines

    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        (route,) = [each for each in self.informant.routes() if (each.method, each.path) == (method, path)]
        lower = {key.lower(): value for key, value in headers.items()}
        answer = await route.answer(Request(method, path, body, lower, peer="10.0.0.9"))
        assert isinstance(answer, Reply)
        return answer.status

    def refused(self) -> dict[str, float]:
        name = "parley_informant_requests_refused_total"
        found = self.informant.figures().items()
        return {key.split('"')[1]: value for key, value in found if key.startswith(name) and value}


@pytest.fixture
def guest(tmp_path: Path) -> GuestWithSecret:
    log, lines = recorded()
    machine = Machine()
    link = SignedLink(secret_file(tmp_path, "mine"), OF_INFORMANT)
    made = Informant(Guest(machine), InformantSettings(), HttpClient(), log, random.Random(1), link)
    return GuestWithSecret(made, machine, lines)


ORDERS = [
    ("POST", "/register"),
    ("DELETE", "/unregister"),
    ("PUT", "/downscale"),
    ("PUT", "/upscale"),
    ("GET", "/machine"),
    ("PUT", "/machine"),
]


@pytest.mark.parametrize(("method", "path"), ORDERS)
async def test_a_stranger_gives_a_guest_orders(
    guest: GuestWithSecret, tmp_path: Path, method: str, path: str
) -> None:
    """Unsigned, by another VM's secret, in the guest's own words, and with what was said of another page."""
    body = json.dumps({"cpu": 0.25, "memory": 1 << 28, "agentID": str(MINE)}).encode()
    other = SignedLink(secret_file(tmp_path, "theirs"), OF_AGENT)
    own = SignedLink(tmp_path / "mine", OF_INFORMANT)
    agent = SignedLink(tmp_path / "mine", OF_AGENT)
    attacks = [{}, *(link.headers(MINE, method, path, body) for link in (other, own))]
    attacks.append(agent.headers(MINE, method, "/elsewhere", body))
    assert [await guest.send(method, path, body, each) for each in attacks] == [401] * 4
    assert not guest.informant.agents.sessions.all
    assert guest.machine.sizes == []
    assert guest.refused() == {"unsigned": 1, "forged": 3}
    assert [each["reason"] for each in guest.lines] == ["unsigned", "forged", "forged", "forged"]


async def test_a_replayed_order(guest: GuestWithSecret, tmp_path: Path) -> None:
    agent = SignedLink(tmp_path / "mine", OF_AGENT)
    headers = agent.headers(MINE, "GET", "/machine")
    assert [await guest.send("GET", "/machine", b"", headers) for _ in range(2)] == [501, 401]
    assert guest.refused() == {"replayed": 1}


async def test_health_and_load_are_open(guest: GuestWithSecret) -> None:
    """As in a published guest: others than agents read them, and they change nothing."""
    for path in ("/healthz", "/readyz", "/metrics"):
        assert await guest.send("GET", path, b"", {}) == 200


@pytest.mark.parametrize("secret", ["mine", "theirs"])
async def test_an_agent_and_a_guest_meet_by_one_secret_alone(
    guest: GuestWithSecret, tmp_path: Path, secret: str
) -> None:
    """Over real sockets, in both directions: registration with its check of `/id`, and a size."""
    log, _ = recorded()
    signed = SignedLink(secret_file(tmp_path, secret), OF_AGENT)
    runner = registered(World(signed=signed).runner, MINE)
    of_agent = Server(log, Callbacks(lambda: [runner], log).routes())
    of_guest = Server(log, guest.informant.routes())
    port, guest_port = await of_agent.start("127.0.0.1", 0), await of_guest.start("127.0.0.1", 0)
    try:
        async with HttpClient() as client:
            guest.informant.agents._client = client
            url = f"http://127.0.0.1:{guest_port}"
            link = InformantLink(client, url, f"127.0.0.1:{port}", 2.0, random.Random(1), signed)
            outcome: Any = await link.register(MINE)
            upscale: Any = await link.announce_upscale(cu(2))
    finally:
        await of_agent.close()
        await of_guest.close()
    phases = [each.phase for each in guest.informant.agents.sessions.all]
    if secret == "mine":
        assert outcome.registration == MINE
        assert upscale.amount == cu(2)
        assert len(phases) == 1
        assert isinstance(runner._inbox.get_nowait(), InformantHeard)
    else:
        assert "401" in outcome.error
        assert "401" in upscale.error
        assert phases == []
        assert runner._inbox.empty()
