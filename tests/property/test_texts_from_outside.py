"""Whatever a peer, a plugin, a guest or an object says: where its text enters a document, it is one bounded line that a terminal shows and does not obey."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core import events
from agent.core.policies.values import Goal, GoalPart, ResourceGoal
from agent.daemon import node_plugins
from agent.daemon.policies import checked
from agent.node.plugins.core.plugin_state import PluginState
from agent.node.plugins.ports import PluginStatus
from agent.node.plugins.proto.policy_v1_pb2 import GetGoalResponse
from agent.node.plugins.proto.policy_v1_pb2 import GoalPart as PartMessage
from agent.node.plugins.proto.policy_v1_pb2 import ResourceGoal as GoalMessage
from agent.node.plugins.types.answers import AnswerError, plain
from agent.node.plugins.types.policy import goal_of
from agent.runner.event_json import event_document
from hosting import problems
from hosting.kubernetes import annotations, errors
from protocol import codec
from protocol.reasons import ErrorCode, ReasonCode
from scheduler.clusters.kubernetes.status import StatusCondition, conditions_of
from scheduler.explain.core import records
from scheduler.placing.core.status import Code, new_status
from scheduler.placing.kube_extender import verdicts
from scheduler.pools.core import validation
from scheduler.pools.core.admission_state import message_of
from scheduler.pools.core.errors import AppError
from scheduler.pools.core.values import Admission
from tests.unit.agent.driver import VM

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
        *verdicts.texts({"n": new_status(Code.UNSCHEDULABLE, text)}, are_resolvable=True).values()
    ],
    "the condition of an object": _condition,
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
