"""A runner's events are told as their kind and plain fields, and never with the ID of a registration."""

import json
from uuid import UUID

import pytest

from agent.core import events
from agent.core.policies.values import Goal, Load, PluginAnswer, ResourceGoal, Sizing
from agent.runner.runner_log import MAX_TEXT, event_document, without_ids
from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Observation
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources
from tests.support.amounts import cu
from tests.unit.agent.driver import VM

REGISTRATION = UUID("12345678-1234-4234-8234-123456789abc")


@pytest.mark.parametrize(
    "event",
    [
        events.Started(events.Register(), REGISTRATION),
        events.Registered(REGISTRATION, InformantProtoVersion.V1_1, 9100),
        events.Resumed(REGISTRATION),
        events.TryUpscaleReceived(REGISTRATION, MoreResources(cpu=True, memory=False)),
        events.RegisterFailed(f"status 409: agent {REGISTRATION} is registered already", 0.5),
        events.InformantFailed(f"agent {REGISTRATION} " * 99, is_lost=False, chance=0.5),
    ],
)
def test_no_event_tells_the_registration(event: events.Event) -> None:
    shown = json.dumps(event_document(event))
    assert event_document(event)["event"] == type(event).__name__
    assert str(REGISTRATION) not in shown
    assert REGISTRATION.hex not in shown
    assert "chance" not in shown


def test_an_event_is_its_kind_and_plain_fields() -> None:
    reason = Reason(ReasonCode.NODE_HEADROOM, "full", retry_after_s=2.0)
    granted = events.PermitGranted(7, cu(2), ComputeUnit(cu(1)), sent_s=99.0, reasons=(reason,))
    fields = event_document(granted)["fields"]
    assert fields["number"] == 7
    assert fields["permit"] == {"cpu": "2", "memory": "2Gi"}
    assert fields["reasons"][0]["code"] == "node-headroom"
    assert "sentSeconds" not in fields
    assert (
        event_document(events.Observed(Observation(cu(2), cu(3), 1.0)))["fields"]["observation"]["target"][
            "cpu"
        ]
        == "3"
    )
    assert event_document(events.Started(events.AskDownscale(cu(1)))) == {
        "event": "Started",
        "fields": {"action": {"kind": "AskDownscale", "amount": {"cpu": "1", "memory": "1Gi"}}},
    }


def test_a_vm_is_told_with_the_names_that_messages_have() -> None:
    fields = event_document(events.VmChanged(VM))["fields"]["vm"]
    names = {"pod", "podUID", "bounds", "unit", "slotBytes", "kind", "virtualMachine", "priority", "yields"}
    assert names == set(fields)
    assert fields["bounds"]["max"] == VM.bounds.max.written()


def test_a_text_is_cut_as_a_text() -> None:
    error = event_document(events.ObserveFailed('"' * 9999, 0.0))["fields"]["error"]
    assert len(error) == MAX_TEXT
    assert error.endswith("…")
    assert without_ids(f"agent {REGISTRATION} is gone") == "agent 12345678… is gone"


def test_what_policies_are_asked_and_answer_is_told_in_plain_fields() -> None:
    asked = events.AskPolicies(Load(busy_micro=5), Sizing(cu(1), VM.unit, VM.bounds))
    fields = event_document(events.Started(asked))["fields"]["action"]
    assert (fields["kind"], fields["load"], fields["sizing"]["use"]) == (
        "AskPolicies",
        {"busyMicro": 5, "memoryRise": 0, "answers": []},
        {"cpu": "1", "memory": "1Gi"},
    )
    goal = ResourceGoal(3, "decree")
    answered = events.PoliciesAnswered(
        (PluginAnswer("a", Goal(goal, goal)), PluginAnswer("b", None, "no answer"))
    )
    told = {"units": 3, "reason": "decree", "parts": []}
    assert event_document(answered)["fields"]["answers"] == [
        {"plugin": "a", "goal": {"cpu": told, "memory": told}, "error": ""},
        {"plugin": "b", "error": "no answer"},
    ]
