"""StateCallbacks in threads of their own: coalesced, contained, bounded, and none before the states are synced."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.node.qos.core.states import ObjectType
from agent.node.qos.states_informer import MAX_CALLBACKS, SLOW_AFTER_S, StateCallbacks
from tests.support.waiting import PATIENCE_S
from tests.unit.agent_qos.strategies import Lines, UnshownError, raising

NODE, PODS = ObjectType.NODE, ObjectType.ALL_PODS


@dataclass
class Gate:
    """A callback that says when it is called, and returns when it may."""

    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_return: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, object_type: ObjectType) -> None:
        self.entered.release()
        assert self.may_return.acquire(timeout=PATIENCE_S)

    def wait(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_S), "never called"

    def is_called(self) -> bool:
        """Whether there was a further call by now."""
        return self.entered.acquire(blocking=False)


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def callbacks(lines: Any, clock: Clock) -> Iterator[StateCallbacks]:
    """StateCallbacks whose owner `test` is closed at the end; none of their threads is left."""
    found = StateCallbacks(lines, clock)
    yield found
    found.close("test", PATIENCE_S)
    assert found.statuses() == ()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("callback")]


def register(
    callbacks: StateCallbacks, callback: Callable[[ObjectType], None], name: str = "a", kind: Any = NODE
) -> None:
    callbacks.register(kind, name, "for the test", callback, owner="test")


def test_no_callback_is_called_before_the_states_are_synced(callbacks: StateCallbacks) -> None:
    gate = Gate()
    register(callbacks, gate)
    callbacks.send(NODE)
    callbacks.send(NODE)
    assert not [each for each in threading.enumerate() if each.name.startswith("callback")], (
        "no thread either"
    )
    callbacks.begin()
    gate.wait()
    gate.may_return.release()
    callbacks.close("test", PATIENCE_S)
    assert not gate.is_called(), "what was sent before is one call"


def test_changes_during_a_call_are_one_further_call(callbacks: StateCallbacks) -> None:
    gate = Gate()
    register(callbacks, gate)
    callbacks.begin()
    callbacks.send(NODE)
    gate.wait()
    for _ in range(5):
        callbacks.send(NODE)
    gate.may_return.release()
    gate.wait()
    gate.may_return.release()
    callbacks.close("test", PATIENCE_S)
    assert not gate.is_called()


def test_who_registers_later_is_called_for_what_is_there(callbacks: StateCallbacks) -> None:
    callbacks.begin()
    callbacks.send(NODE)
    gate, other = Gate(), Gate()
    register(callbacks, gate)
    register(callbacks, other, kind=PODS)
    gate.wait()
    gate.may_return.release()
    assert not other.is_called()


def test_a_callback_that_never_returns_holds_no_other_up_and_is_reported_once(
    callbacks: StateCallbacks, lines: Lines, clock: Clock
) -> None:
    hanging, quick = Gate(), Gate()
    register(callbacks, hanging, "hanging")
    register(callbacks, quick, "quick")
    quick.may_return.release(3)
    callbacks.begin()
    callbacks.send(NODE)
    hanging.wait()
    for _ in range(2):
        quick.wait()
        callbacks.send(NODE)
    quick.wait()
    clock.now_s = SLOW_AFTER_S
    callbacks.report_slow()
    callbacks.report_slow()
    (told,) = [fields for _, text, fields in lines.lines if text == "callback does not return"]
    assert told == {"type": NODE, "callback": "hanging", "owner": "test"}
    assert {each.name: each.running_seconds for each in callbacks.statuses()} == {
        "hanging": SLOW_AFTER_S,
        "quick": None,
    }
    callbacks.close("test", 0.0)
    with pytest.raises(ValueError, match="'hanging' of Node is registered already"):
        register(callbacks, hanging, "hanging")
    hanging.may_return.release()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(), KeyboardInterrupt(), UnshownError()])
def test_what_a_callback_raises_ends_that_call_alone(
    callbacks: StateCallbacks, lines: Lines, error: BaseException
) -> None:
    called = threading.Semaphore(0)

    def fail(object_type: ObjectType) -> None:
        called.release()
        raise error

    register(callbacks, fail)
    callbacks.begin()
    for _ in range(3):
        callbacks.send(NODE)
        assert called.acquire(timeout=PATIENCE_S)
    callbacks.close("test", PATIENCE_S)
    assert lines.texts("warning") == ["callback failed"], "a fault that lasts is one line"


def test_calls_and_errors_are_counted(callbacks: StateCallbacks) -> None:
    gate = Gate()
    register(callbacks, raising(ValueError("no")), "bad")
    register(callbacks, gate, "good")
    callbacks.begin()
    callbacks.send(NODE)
    gate.wait()
    bad = next(each for each in callbacks.statuses() if each.name == "bad")
    while not bad.errors:
        bad = next(each for each in callbacks.statuses() if each.name == "bad")
    assert (bad.calls, bad.errors, bad.last_error) == (1, 1, "no")
    gate.may_return.release()


@pytest.mark.parametrize(
    ("kind", "name", "callback", "said"),
    [
        (NODE, "taken", print, "is registered already"),
        (NODE, "", print, "must have a name"),
        (NODE, "b", None, "be callable"),
        ("NodeSLO", "b", print, "no object type 'NodeSLO'"),
    ],
)
def test_what_cannot_be_registered_is_an_error_and_ends_nothing(
    callbacks: StateCallbacks, kind: Any, name: str, callback: Any, said: str
) -> None:
    register(callbacks, print, "taken")
    register(callbacks, print, "taken", PODS)  # a name may be used once for each type
    with pytest.raises(ValueError, match=said):
        register(callbacks, callback, name, kind)
    assert len(callbacks.statuses()) == 2


def test_there_are_so_many_callbacks_at_most(callbacks: StateCallbacks) -> None:
    for index in range(MAX_CALLBACKS):
        register(callbacks, print, f"callback {index}")
    with pytest.raises(ValueError, match=f"there are {MAX_CALLBACKS} already"):
        register(callbacks, print, "one more")
