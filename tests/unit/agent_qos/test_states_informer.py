"""The informer publishes states, tells changes alone, and is synced once each kind was published."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.node.qos.core.states import NodeState, ObjectType, ScalingPolicyState, VmState
from agent.node.qos.states_informer import StateCallbacks, States
from protocol.values import Resources
from tests.unit.agent_qos.strategies import LOG, NONE, pod
from tests.unit.agent_qos.strategies import states as some_states

NODE = NodeState("node-1", Resources(4000, 2**33), Resources(4000, 2**33), labels={"zone": "a"})
VM = VmState("default/db", "uid-db", NONE, NONE, NONE, NONE)
POLICY = ScalingPolicyState("default", "db", {"windows": [{"min": 1}]})


class Sent(StateCallbacks):
    """StateCallbacks that only note what is sent."""

    def __init__(self) -> None:
        super().__init__(LOG, clock=lambda: 0.0)
        self.sent: list[ObjectType] = []

    def send(self, object_type: ObjectType) -> None:
        self.sent.append(object_type)


@pytest.mark.parametrize(
    ("publish", "kind", "is_change"),
    [
        (lambda states: states.publish_node(NODE), ObjectType.NODE, False),
        (lambda states: states.publish_node(replace(NODE, labels={"zone": "b"})), ObjectType.NODE, True),
        (lambda s: s.publish_pods([pod("b"), pod("a")], is_healthy=True), ObjectType.ALL_PODS, False),
        (lambda s: s.publish_pods([pod("a")], is_healthy=False), ObjectType.ALL_PODS, True),
        (lambda s: s.publish_pods([], is_healthy=True), ObjectType.ALL_PODS, True),
        (lambda s: s.publish_pods([], is_healthy=False), ObjectType.ALL_PODS, False),
        (lambda states: states.publish_vms([VM]), ObjectType.ALL_VMS, False),
        (lambda states: states.publish_vms([replace(VM, held=Resources(1, 1))]), ObjectType.ALL_VMS, True),
        (lambda states: states.publish_policies([POLICY]), ObjectType.SCALING_POLICIES, False),
        (lambda states: states.publish_policies([]), ObjectType.SCALING_POLICIES, True),
    ],
)
def test_callbacks_are_sent_where_something_differs(
    publish: Callable[[States], object], kind: ObjectType, is_change: bool
) -> None:
    callbacks = Sent()
    states = States(callbacks)
    states.publish_node(NODE)
    states.publish_pods([pod("a"), pod("b")], is_healthy=True)
    states.publish_vms([VM])
    states.publish_policies([POLICY])
    assert callbacks.sent == list(ObjectType), "the first reading is a change"
    publish(states)
    assert callbacks.sent[4:] == [kind] * is_change


def test_no_pods_after_some_are_believed_of_a_healthy_source_alone() -> None:
    states = some_states()
    assert states.publish_pods([], is_healthy=False), "there were none before"
    assert states.publish_pods([pod("a")], is_healthy=False)
    assert not states.publish_pods([], is_healthy=False)
    assert (states.get_all_pods(), states.refused_total) == ((pod("a"),), 1)
    assert states.publish_pods([], is_healthy=True)
    assert (states.get_all_pods(), states.refused_total) == ((), 1)


@pytest.mark.parametrize(
    "write",
    [
        lambda states: states.get_node().labels.update(zone="b"),
        lambda states: states.get_all_pods()[0].labels.update(a="b"),
        lambda states: states.get_scaling_policies()[0].spec.update(a="b"),
        lambda states: states.get_scaling_policies()[0].spec["windows"].append(1),
        lambda states: states.get_scaling_policies()[0].spec["windows"][0].update(min=2),
    ],
)
def test_a_reader_cannot_change_what_others_read(write: Callable[[Any], object]) -> None:
    states = some_states()
    states.publish_node(NODE)
    states.publish_pods([pod("a", labels={})], is_healthy=True)
    states.publish_policies([POLICY])
    with pytest.raises((AttributeError, TypeError)):
        write(states)


async def test_the_states_are_synced_once_each_kind_was_published() -> None:
    states = some_states(is_synced=False)
    waiting = asyncio.create_task(states.wait_for_sync())
    await asyncio.sleep(0)
    assert (states.has_synced(), states.missing(), waiting.done()) == (False, (ObjectType.ALL_PODS,), False)
    states.publish_pods([], is_healthy=True)
    await waiting
    assert (states.has_synced(), states.missing()) == (True, ())


def test_before_anything_is_published_there_is_nothing() -> None:
    states = States(Sent())
    found = (states.get_node(), states.get_all_pods(), states.get_all_vms(), states.get_scaling_policies())
    assert found == (None, (), (), ())
