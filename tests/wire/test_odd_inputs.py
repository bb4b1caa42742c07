"""Every row of the tables of odd inputs, sent to a published stand-in and to our program; and the tables themselves."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from agent.core.state import RegistrationPhase
from agent.daemon.callbacks import Callbacks
from hosting.server import Server
from protocol.values import Bounds, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import NodeSpec, VmSpec
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.service import PermitService
from scheduler.permits.service.transport import PermitTransport
from tests.peers import resources
from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import PublishedInformant
from tests.peers.published_scheduler import ClusterVM, PublishedScheduler, SchedulerKnobs
from tests.peers.support import BareAgent, agent_knobs, informant_knobs, running
from tests.support.waiting import until
from tests.unit.agent.peers import World
from tests.unit.hosting.raw_peers import Wire, recorded, request_bytes
from tests.unit.informant.guests import served
from tests.wire.odd_inputs import AGENT, AGENT_ID, INFORMANT, SCHEDULER, TABLES, Case

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
GIB = 2**30
UNIT, USE, MOST = Resources(1000, GIB), Resources(2000, 2 * GIB), Resources(4000, 4 * GIB)
VM_A = VmSpec(PodName("a", "d"), "u1", "n1", Bounds(UNIT, MOST), GIB, UNIT)


async def ask(address: str, case: Case, body: bytes, prefix: str = "") -> str:
    """The outcome of a body, as the tables say it."""
    host, _, port = address.rpartition(":")
    method, _, path = case.request.partition(" ")
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    more = (case.header,) if case.header else ()
    try:
        with suppress(
            ConnectionError
        ):  # who answers before it has read all may close before we have sent all
            await wire.send(request_bytes(method, prefix + path, body, *more))
        got = await wire.response()
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    finally:
        await wire.close()
    return f"{got.status}{_told(got.body)}" if got.status == 200 else str(got.status)


def _told(body: bytes) -> str:
    """The words of a good answer beside its status."""
    answer = json.loads(body)
    if "permit" in answer:
        return f", {answer['permit']['vCPUs']}/{answer['permit']['mem']}"
    return "" if "Ok" not in answer else ", Ok" if answer["Ok"] else ", not Ok"


def of(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("case", "body"),
        [
            pytest.param(case, body, id=f"{case.request}: {case.what} {number}")
            for case in cases
            for number, body in enumerate(case.bodies, 1)
        ],
    )


# ------------------------------------------------------------ the scheduler

GOOD = SCHEDULER[5]
"""It tells the unit."""


class Cluster:
    """A cluster that shows one VM."""

    async def refresh(self) -> tuple[events.Input, ...]:
        return ()

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        del pods
        return ()

    def look(self, pod: PodName) -> events.Look:
        return events.Look(pod == VM_A.pod, Observation(USE, USE, 1.0) if pod == VM_A.pod else None)


@asynccontextmanager
async def our_scheduler() -> AsyncIterator[str]:
    log, _ = recorded()
    core = Core(SchedulerConfig(UUID(int=5), hold_first_s=0.0, published_agents=("*",)))
    service = PermitService(core, Cluster(), lambda: 1.0, log)
    core.apply(events.NodeSeen(NodeSpec("n1", UNIT * 10, UNIT)))
    core.apply(events.VmSeen(VM_A, Observation(USE, USE, 1.0), 1.0, is_new=True))
    server = Server(log, PermitTransport(service).routes())
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.close()
        await service.close()


@of(SCHEDULER)
async def test_a_request_to_the_scheduler(case: Case, body: bytes) -> None:
    low, high, use = (resources.Resources(size, size) for size in (1, 4, 2))
    known = ClusterVM(low, high, use)
    theirs = PublishedScheduler(SchedulerKnobs(total=resources.Resources(10, 10)), {("d", "a"): known})
    async with running(theirs), our_scheduler() as ours:
        for address, outcome in ((theirs.address, case.published), (ours, case.here)):
            assert await ask(address, GOOD, GOOD.bodies[0]) == GOOD.published
            assert await ask(address, case, body) == outcome


# ------------------------------------------------------------ the informant


def _is_in_use(agent: BareAgent) -> bool:
    return "POST /resume" in agent.requests


@of(INFORMANT)
async def test_a_request_to_the_informant(case: Case, body: bytes) -> None:
    """Of 4 GiB, 1 is in use; a registered agent is what it needs to agree on sizes at all."""
    theirs, agents = PublishedInformant(informant_knobs(memory_in_use=GIB)), [BareAgent(), BareAgent()]
    async with running(theirs, *agents), served() as ours:
        outcomes = (theirs.address, case.published), (ours, case.here)
        for agent, (address, outcome) in zip(agents, outcomes, strict=True):
            agent.id = AGENT_ID
            await ask(address, Case("", "POST /register", b"", ""), agent.desc)
            await until(partial(_is_in_use, agent))
            agent.id = AGENT_ID if "zeros" in case.what else _id_in(body)
            named = body.replace(b"ADDRESS", agent.server.address.encode())
            assert await ask(address, case, named) == outcome


def _id_in(body: bytes) -> str:
    """The agent that a registration is about answers under its ID."""
    try:
        return str(UUID(json.loads(body)["agentID"].strip("<>")))
    except (ValueError, KeyError, TypeError):
        return AGENT_ID


# ------------------------------------------------------------ the agent


@asynccontextmanager
async def our_agent() -> AsyncIterator[str]:
    made = World()
    runner = made.runner
    link = replace(
        runner.state.informant,
        registration=UUID(AGENT_ID),
        phase=RegistrationPhase.ACTIVE,
        version=InformantProtoVersion.V1_1,
    )
    runner.state = replace(runner.state, informant=link)
    server = Server(recorded()[0], Callbacks(lambda: [runner], recorded()[0]).routes())
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.close()


@of(AGENT)
async def test_a_request_to_the_agent(case: Case, body: bytes) -> None:
    size = resources.Resources(1, 1)
    informant = PublishedInformant(informant_knobs())
    async with running(informant), our_agent() as ours:
        theirs = PublishedAgent(VM(size, size, size), informant.address, agent_knobs())
        async with running(theirs):
            await until(lambda: theirs.mode == "running")
            assert theirs.server is not None
            theirs.server.id = AGENT_ID
            assert await ask(theirs.server.server.address, case, body) == case.published
            assert await ask(ours, case, body, f"/agents/{AGENT_ID}") == case.here


# ------------------------------------------------------------ the page


def test_the_page_has_the_tables() -> None:
    page = PAGE.read_text()
    for title, cases in TABLES.items():
        lines = [
            f"**{title}**",
            "",
            "| Request | What is sent | Published | Here | Why it differs |",
            "|---|---|---|---|---|",
        ]
        for case in cases:
            here = case.here if case.ours else "the same"
            lines.append(f"| `{case.request}` | {case.what} | {case.published} | {here} | {case.why} |")
        assert "\n".join(lines) in page


@pytest.mark.parametrize("case", [case for cases in TABLES.values() for case in cases], ids=str)
def test_what_differs_has_a_reason_and_nothing_else_has(case: Case) -> None:
    assert bool(case.why) is bool(case.ours)
    assert case.ours != case.published
