"""Each fault of a plugin's answer is named with its field, its value and the rule, and all are told at once."""

import math
from typing import Any

import pytest

from agent.core.model import Stalls
from agent.core.policies.values import Goal, GoalPart, Load, Psi, ResourceGoal
from agent.node.plugins.ports import AnswerError, plain
from agent.node.plugins.proto.metricssource_v1_pb2 import ReadResponse
from agent.node.plugins.proto.metricssource_v1_pb2 import Stalls as StallsMessage
from agent.node.plugins.proto.policy_v1_pb2 import GetGoalResponse
from agent.node.plugins.proto.policy_v1_pb2 import GoalPart as PartMessage
from agent.node.plugins.proto.policy_v1_pb2 import ResourceGoal as GoalMessage
from agent.node.plugins.types.calls import goal_of, load_message, sample_of
from tests.unit.agent.driver import VM

UID = VM.pod_uid
NOW_S = 1000.0
TELLS = GoalMessage(units=1, reason="so")


def test_what_a_source_does_not_know_is_unknown_and_zero_is_zero() -> None:
    nothing = sample_of(ReadResponse(vm_uid=UID), VM, NOW_S)
    assert (nothing.at_s, nothing.load1, nothing.cpu_busy_s, nothing.memory_total, nothing.cpu_stalls) == (
        NOW_S,
        None,
        None,
        None,
        None,
    )
    zero = ReadResponse(
        vm_uid=UID,
        age_s=2,
        load1=0,
        cpu_busy_total_s=0,
        memory_total_bytes=0,
        cpu_stalls=StallsMessage(),
        memory_stalls=StallsMessage(some_total_s=3, full_total_s=0),
    )
    found = sample_of(zero, VM, NOW_S)
    assert (found.at_s, found.load1, found.cpu_busy_s, found.memory_total) == (998.0, 0.0, 0.0, 0)
    assert (found.cpu_stalls, found.memory_stalls) == (Stalls(0.0), Stalls(3.0, 0.0))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vm_uid": "uid-b"}, "vm_uid: must repeat 'uid-a', not 'uid-b'"),
        ({"vm_uid": "x" * 10**6}, f"vm_uid: must repeat 'uid-a', not '{'x' * 59}…"),
        ({"load1": math.nan}, "load1: must be a number from 0 to 1e+06, not nan"),
        ({"load5": -1.0}, "load5: must be a number from 0 to 1e+06, not -1.0"),
        ({"cpu_busy_total_s": math.inf}, "cpu_busy_total_s: must be a number from 0 to 1e+15, not inf"),
        ({"age_s": 301.0}, "age_s: must be a number from 0 to 300, not 301.0"),
        ({"age_s": -0.1}, "age_s: must be a number from 0 to 300, not -0.1"),
        (
            {"memory_total_bytes": 2**63},
            "memory_total_bytes: must be from 0 to 9223372036854775807, not 9223372036854775808",
        ),
        (
            {"memory_total_bytes": 1, "memory_available_bytes": 2},
            "memory_available_bytes: must not exceed memory_total_bytes, not 2",
        ),
        (
            {"cpu_stalls": StallsMessage(some_total_s=1, full_total_s=2)},
            "cpu_stalls.full_total_s: must not exceed some_total_s, not 2.0",
        ),
        (
            {"memory_stalls": StallsMessage(some_total_s=-1), "load1": -2},
            (
                "load1: must be a number from 0 to 1e+06, not -2.0; "
                "memory_stalls.some_total_s: must be a number from 0 to 1e+15, not -1.0"
            ),
        ),
    ],
)
def test_a_reading_that_cannot_be_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AnswerError) as raised:
        sample_of(ReadResponse(**{"vm_uid": UID, **fields}), VM, NOW_S)
    assert str(raised.value) == text


def test_a_goal_keeps_its_parts_and_unknown_units_stay_unknown() -> None:
    part = PartMessage(name="tail", units=0, reason="idle")
    answer = GetGoalResponse(
        vm_uid=UID,
        cpu=GoalMessage(reason="no data"),
        memory=GoalMessage(units=0, reason="r" * 999, parts=[part]),
    )
    assert goal_of(answer, VM, "p") == Goal(
        ResourceGoal(None, "no data", (GoalPart("p", None, "no data"),)),
        ResourceGoal(0, "r" * 299 + "…", (GoalPart("p: tail", 0, "idle"),)),
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"cpu": None},
            "cpu: must be given; a goal without units says that the policy cannot tell, not None",
        ),
        ({"cpu": GoalMessage(units=1)}, "cpu.reason: must not be empty, not ''"),
        (
            {"memory": GoalMessage(units=2**31, reason="so")},
            "memory.units: must be from 0 to 2147483647, not 2147483648",
        ),
        (
            {"cpu": GoalMessage(units=1, reason="x" * 2000)},
            f"cpu.reason: must have at most 1024 characters and has 2000, not '{'x' * 59}…",
        ),
        (
            {"cpu": GoalMessage(reason="so", parts=[PartMessage()] * 17)},
            (
                "cpu.parts: must have at most 16 parts, not 17; cpu.parts[0].name: must not be empty, not ''; "
                "cpu.parts[0].reason: must not be empty, not ''; cpu.parts[1].name: must not be empty, not ''; "
                "cpu.parts[1].reason: must not be empty, not ''; cpu.parts[2].name: must not be empty, not ''; "
                "cpu.parts[2].reason: must not be empty, not ''; cpu.parts[3].name: must not be empty, not ''; "
                "and 25 more faults"
            ),
        ),
    ],
)
def test_a_goal_that_cannot_be_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AnswerError) as raised:
        goal_of(GetGoalResponse(**{"vm_uid": UID, "cpu": TELLS, "memory": TELLS, **fields}), VM, "p")
    assert str(raised.value) == text


def test_a_policy_is_told_what_is_known_and_nothing_else() -> None:
    load = Load(busy_micro=-1, load1=math.nan, load5=0.0, memory_total=7, memory_psi=Psi(some_avg10=0.0))
    message = load_message(load)
    told = {field.name for field, _ in message.ListFields()}
    assert told == {"load5", "memory_total_bytes", "memory_rise_bytes_per_s", "memory_pressure"}
    assert message.memory_pressure.HasField("some_avg10_percent")
    assert not message.memory_pressure.HasField("full_avg10_percent")


def test_texts_of_plugins_are_one_line_of_bounded_length() -> None:
    assert plain("a\n\tb\r\n" + "c" * 5000) == "a b " + "c" * (1024 - 5) + "…"
