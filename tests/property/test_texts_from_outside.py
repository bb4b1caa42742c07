"""Whatever a peer, a plugin, a guest or an object says: where its text enters a document, it is one bounded line that a terminal shows and does not obey."""

import asyncio
import contextlib
import io
import json
import logging
import random
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from qemu.qmp import ExecuteError, Message, QMPClient, Runstate
from qemu.qmp.models import ErrorResponse

from agent.core import events
from agent.core.policies.values import Goal, GoalPart, ResourceGoal
from agent.daemon import node_plugins
from agent.daemon.policies import checked
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.ports import AnswerError, PluginStatus, plain
from agent.node.plugins.proto.policy_v1_pb2 import GetGoalResponse
from agent.node.plugins.proto.policy_v1_pb2 import GoalPart as PartMessage
from agent.node.plugins.proto.policy_v1_pb2 import ResourceGoal as GoalMessage
from agent.node.plugins.types.calls import goal_of
from agent.node.qos.client import StrategyJournal
from agent.node.qos.core.actions import StrategyDecision
from agent.peers.informant import InformantLink
from agent.runner.runner_log import event_document
from hosting import logs, problems
from hosting.client import Answered, HttpClient, Outcome
from hosting.kubernetes import annotations, errors
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import EVENTS
from hosting.qmp import QmpConnection, QmpRefusedError
from hosting.server import Request
from protocol import codec
from protocol.reasons import ErrorCode, ReasonCode
from scheduler.clusters.kubernetes.status import StatusCondition, conditions_of
from scheduler.explain.core import records
from scheduler.placing.core.values import Code, Status, error_status, new_status
from scheduler.placing.kube_extender import messages
from scheduler.pools.core import validation
from scheduler.pools.core.admission_state import message_of
from scheduler.pools.core.errors import AppError
from scheduler.pools.core.values import Admission
from tests.support.kube_api import FakeApiServer
from tests.support.kube_store import Selector
from tests.support.servers import QUIET
from tests.support.virtual_time import VirtualLoop, now_s
from tests.unit.agent.driver import VM
from tests.unit.agent.test_callbacks import REGISTRATION, registered
from tests.unit.scheduler_extender import extender_worlds

NASTY: Final = ("\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b31m", "\u202e", "a\r\nb", "x" * 5000, "\ud800")
TEXTS: Final = st.lists(st.text(max_size=40) | st.sampled_from(NASTY), max_size=4).map("".join)
LONGEST: Final = 4096


def _goal(text: str) -> list[str]:
    text = text.encode(errors="ignore").decode()  # a message of gRPC has no halves of characters
    parts = [PartMessage(name=text, reason=text)]
    told = GoalMessage(reason=text, parts=parts)
    try:
        goal = goal_of(GetGoalResponse(vm_uid=VM.pod_uid, cpu=told, memory=told), VM, "p")
    except AnswerError as error:
        return [str(error)]
    return [goal.cpu.reason, goal.cpu.parts[0].policy, goal.cpu.parts[0].reason]


def _own_policy(text: str) -> list[str]:
    said = ResourceGoal(1, text, (GoalPart(text, 1, text),))
    goal = checked("p", Goal(said, said))
    return [goal.cpu.reason, *(part.reason for part in goal.cpu.parts)]


def _plugins(text: str) -> list[str]:
    status = PluginStatus(f"/p/{text}", PluginState.FAILED, 1.0, endpoint=f"/e/{text}")
    (shown,) = json.loads(node_plugins.document("n", "/p", [status]))["plugins"]
    return [shown["socket"], shown["endpoint"]]


def _admission(text: str) -> list[str]:
    found = validation.sound(Admission(admitted=0, message=text, reason=text), Admission, None, "x")
    return [found.message, found.reason]


def _problem(text: str) -> list[str]:
    found = problems.problem(400, ErrorCode.MALFORMED, text, [text])
    return [found.detail, *found.faults]


def _refusal(text: str) -> list[str]:
    status = json.dumps({"kind": "Status", "reason": text, "message": text}).encode()
    return [str(errors.refusal(422, status)), str(errors.refusal(502, text.encode(errors="replace")))]


def _condition(text: str) -> list[str]:
    wanted = [StatusCondition("Ready", is_true=False, reason="No", message=text)]
    return [
        each["message"] for each in conditions_of({"metadata": {}}, wanted, datetime(2026, 1, 1, tzinfo=UTC))
    ]


def _refused_permit(text: str) -> list[str]:
    read = codec.decode_error(json.dumps({"code": "malformed", "error": text}).encode())
    assert read is not None
    return [read.body.message]


def _ran(story: Coroutine[Any, Any, list[str]]) -> list[str]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


class _SaysNext:
    """A client whose calls are answered in turn."""

    def __init__(self, *answers: Answered) -> None:
        self._answers = list(answers)

    async def call(self, *_: object, **__: object) -> Outcome:
        return self._answers.pop(0)


async def _informant_says(text: str) -> list[str]:
    """A refusal, an answer that is none, and one with another status."""
    refusal = json.dumps({"ok": False, "status": text}).encode()
    client = _SaysNext(
        Answered(200, refusal), Answered(500, text.encode(errors="replace")), Answered(200, b"[]")
    )
    link = InformantLink(cast("HttpClient", client), "http://i", "a:1", 1.0, random.Random(1))
    found = [await link.ask_downscale(VM.bounds.min) for _ in range(3)]
    assert isinstance(found[0], events.DownscaleDenied)
    return [str(getattr(each, "status", getattr(each, "error", ""))) for each in found]


async def _urgent_wish(text: str) -> list[str]:
    runner, callbacks = registered()
    offered: list[events.Event] = []

    def offer(event: events.Event) -> bool:
        offered.append(event)
        return True

    runner.offer = offer  # type: ignore[method-assign]  # what it is offered is looked at
    (route,) = [each for each in callbacks.routes() if each.path.endswith("/try-upscale")]
    wish = {"cpu": True, "memory": False, "expectedID": str(REGISTRATION), "why": text}
    body = json.dumps(wish).encode()
    await route.answer(Request(route.method, "", body, {}, {"agent_id": str(REGISTRATION)}))
    (wish_heard,) = offered
    assert isinstance(wish_heard, events.TryUpscaleReceived)
    return [wish_heard.why]


class _RefusingQemu:
    runstate = Runstate.IDLE

    def __init__(self, text: str) -> None:
        self._refusal = {"error": {"class": text, "desc": text}}

    def register_listener(self, _: object) -> None:
        """Nothing happens."""

    async def execute(self, *_: object) -> None:
        message = Message(self._refusal)
        raise ExecuteError(ErrorResponse(self._refusal), message, message)

    async def disconnect(self) -> None:
        """At once."""


async def _qemu_refuses(text: str) -> list[str]:
    connection = QmpConnection(cast("QMPClient", _RefusingQemu(text)), lambda _: None)
    try:
        await connection.execute("device_add")
    except QmpRefusedError as error:
        return [str(error), error.error_class]
    finally:
        await connection.close()
    raise AssertionError("it refuses")


def _strategy(text: str) -> list[str]:
    journal = StrategyJournal("s", QUIET, lambda: 0.0)
    journal.decided(StrategyDecision(text, text), is_done=True)
    return [journal.records[-1].decision.reason, journal.records[-1].decision.message]


async def _event(text: str) -> list[str]:
    server = FakeApiServer()
    async with server.api() as api:
        recorder = EventRecorder(api, "parley.dev/x", clock=now_s, rng=random.Random(1), log=QUIET)
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "a", "uid": "u"}}
        recorder.record(head, "Warning", text, text, text)
        telling = asyncio.create_task(recorder.run())
        await asyncio.sleep(1)
        telling.cancel()
        await asyncio.wait([telling])
    (found,) = server.store.select(EVENTS, "", Selector())
    return [found["reason"], found["action"], found["note"]]


async def _bind(text: str) -> list[str]:
    """A plugin fails, while kube-scheduler asks for another node."""

    async def fails(*_: object) -> Status:
        await asyncio.sleep(1)
        return error_status(text)

    world = extender_worlds.World()
    world.says["pre_bind"] = fails
    pod = world.create("p")
    first = asyncio.create_task(world.bind(pod, "a"))
    await asyncio.sleep(0.5)
    other = f"b{text[:200]}".encode(errors="ignore").decode()  # it comes as UTF-8
    return [await world.bind(pod, other), await first]


def _log(text: str) -> list[str]:
    text = text[: LONGEST // 8]  # each value is bounded, and a line has several
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = list(root.handlers), root.level
    try:
        with contextlib.redirect_stderr(io.StringIO()) as written:
            logs.configure(style="console")
            error = RuntimeError(text)
            logs.logger("x").error("failed", error=text, faults=[text], by={"key": text}, exc_info=error)
    finally:
        structlog.configure(**config)
        logging.captureWarnings(False)
        root.handlers, root.level = handlers, level
    return written.getvalue().splitlines()


EDGES: Final[dict[str, Callable[[str], list[str]]]] = {
    "what a plugin says of an error": lambda text: [plain(text)],
    "the goal of a policy plugin": _goal,
    "the goal of a policy in the agent's process": _own_policy,
    "sockets of node plugins": _plugins,
    "an event of a VM": lambda text: [_field(events.MetricsFailed(text, False, 0.0), "error")],
    "the annotation of an object": lambda text: [annotations.short(text)],
    "the API server, and webhooks behind it": _refusal,
    "a problem document": _problem,
    "a scheduler that refuses": _refused_permit,
    "a reason in the memory of decisions": lambda text: [records.told(ReasonCode.POOL, text).message],
    "a pool plugin's answer": _admission,
    "a pool plugin's error": lambda text: [message_of(AppError(503, text))],
    "why a scheduling plugin drops a node": lambda text: [
        *messages.texts({"n": new_status(Code.UNSCHEDULABLE, text)}, are_resolvable=True).values()
    ],
    "the condition of an object": _condition,
    "an informant": lambda text: _ran(_informant_says(text)),
    "why an informant cannot wait": lambda text: _ran(_urgent_wish(text)),
    "QEMU": lambda text: _ran(_qemu_refuses(text)),
    "a QoS strategy's decision": _strategy,
    "an Event": lambda text: _ran(_event(text)),
    "a bind that fails": lambda text: _ran(_bind(text)),
    "a line of the log for people, with a traceback": _log,
}


def _field(event: events.Event, name: str) -> str:
    fields: dict[str, Any] = event_document(event)["fields"]
    return str(fields[name])


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
@given(text=TEXTS)
def test_a_text_from_outside_is_one_line_without_what_a_terminal_obeys(
    edge: Callable[[str], list[str]], text: str
) -> None:
    for shown in edge(text):
        assert shown.isprintable()
        assert len(shown) <= LONGEST
