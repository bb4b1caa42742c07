"""The live views remember load and permits by time, and events from differences between documents."""

import math
from typing import Any

import pytest

from parley.top.events import EventKind
from parley.top.history import BUCKET_S, BUCKETS, MAX_EVENTS, History, Past
from parley.top.model import VmRow, rows_of
from tests.unit.parley.top_documents import NASTY, amount, heard, vm

A = "http://node-a:10300"
KEY = (A, "default/web")


def rows(*vms: dict[str, Any], agent: str = A) -> tuple[VmRow, ...]:
    return rows_of(agent, heard(*vms))[0]


def busy(cpus: float, gib: float = 1.0) -> dict[str, Any]:
    return {"busyCPUs": cpus, "load1": 0.0, "memoryUsed": gib * 2**30}


def past(history: History, measured: Any = "cpu", width: int = 6) -> Past:
    found = history.past(KEY, measured, width)
    assert found is not None
    return found


def known(values: tuple[float, ...]) -> list[float | None]:
    """NaN as None, so that it can be compared."""
    return [None if math.isnan(each) else round(each, 3) for each in values]


def said(history: History) -> list[str]:
    """The events, the latest first."""
    return [f"{each.subject} {each.kind}: {each.text}" for each in history.events()]


def story(*told: tuple[float, dict[str, Any]]) -> History:
    """The VM `web`, with these other words at these times."""
    history = History()
    for at_s, other in told:
        history.heard(A, "d-1", rows(vm("web", **other)), at_s)
    return history


def test_a_past_has_load_permit_and_size_by_time_the_latest_at_the_right() -> None:
    history = story(
        (0, {"cpus": 1, "load": busy(0.5, 0.25)}),
        (2, {"cpus": 1, "load": busy(1.0, 0.5)}),
        (4, {"cpus": 1, "permit": amount(4), "load": busy(1.0)}),
        (6, {"cpus": 4, "load": busy(3.5, 2)}),
    )
    cpu, memory = past(history), past(history, "memory")
    assert known(cpu.load) == [None, None, 0.5, 1.0, 1.0, 3.5]
    assert known(cpu.permit) == [None, None, 1, 1, 4, 4]
    assert known(cpu.size) == [None, None, 1, 1, 1, 4]
    assert known(memory.load) == [None, None, 0.25 * 2**30, 0.5 * 2**30, 2**30, 2 * 2**30]
    assert (cpu.top, cpu.moved) == (4, 4)


def test_a_bucket_and_a_column_have_the_largest_of_what_was_heard_in_them() -> None:
    history = History()
    for tenth in range(24):
        load = busy(1.8 if tenth == 1 else 0.2)
        history.heard(A, "d", rows(vm("web", load=load)), tenth * 1.0)
    assert past(history, width=12).load[0] == pytest.approx(1.8)
    assert history.column_s(12) == BUCKET_S
    assert past(history, width=4).load[0] == pytest.approx(1.8)
    assert history.column_s(4) == 3 * BUCKET_S


def test_a_column_is_as_short_as_shows_everything_and_the_past_is_bounded() -> None:
    history = History()
    for at in range(3 * BUCKETS):
        history.heard(A, "d", rows(vm("web", load=busy(at / 1000))), at * BUCKET_S)
    whole = past(history, width=BUCKETS)
    assert history.column_s(BUCKETS) == BUCKET_S
    assert known(whole.load) == [round(at / 1000, 3) for at in range(2 * BUCKETS, 3 * BUCKETS)]
    assert len(past(history, width=2 * BUCKETS).load) == 2 * BUCKETS
    assert known(past(history, width=2 * BUCKETS).load[:BUCKETS]) == [None] * BUCKETS


def test_without_an_answer_the_past_ends_and_a_short_gap_is_filled() -> None:
    history = story((0, {"load": busy(1)}), (4, {"load": busy(2)}), (14, {"load": busy(1)}))
    assert known(past(history, width=8).load) == [1, 1, 2, None, None, None, None, 1]
    history.tick(18)
    assert known(past(history, width=10).load)[-2:] == [None, None]
    history.tick(18 + 2 * BUCKETS * BUCKET_S)
    assert set(known(past(history, width=10).load)) == {None}


def test_an_old_reading_has_no_load_but_a_permit() -> None:
    history = story((0, {"metricsAgeSeconds": 60.0}))
    assert known(past(history, width=1).load) == [None]
    assert known(past(history, width=1).permit) == [2]


def test_a_clock_that_is_set_back_begins_the_past_anew() -> None:
    history = story((100, {}), (102, {}), (50, {}), (52, {}))
    assert known(past(history).permit) == [None, None, None, None, 2, 2]


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"cpus": 4, "reason": "busy"}, ["web grew: 2/2Gi → 4/4Gi: busy"]),
        ({"cpus": 1, "goalReasons": {"cpu": "idle", "memory": "empty"}}, ["web shrank: 2/2Gi → 1/1Gi: idle; empty"]),
        (
            {"size": {"cpu": "4", "memory": "2Gi"}, "goalReasons": {"cpu": "busy", "memory": "full"}},
            ["web grew: 2/2Gi → 4/2Gi: busy"],
        ),
        ({"size": {"cpu": "4", "memory": "1Gi"}, "reason": ""}, ["web resized: 2/2Gi → 4/1Gi"]),
        ({"size": {"cpu": "2000m", "memory": "2048Mi"}}, []),
        ({"size": {"cpu": "many", "memory": "2Gi"}}, ["web resized: 2/2Gi → many/2Gi"]),
        ({"permit": amount(4)}, ["web permit: 2/2Gi → 4/4Gi"]),
        ({"permit": amount(1)}, ["web permit: 2/2Gi → 1/1Gi, below the size 2/2Gi"]),
        (
            {"goal": amount(8), "reasonCode": "node-headroom", "reason": "full"},
            ["web denied: wants 8/8Gi, may have 2/2Gi: node-headroom"],
        ),
        (
            {"cpus": 4, "goal": amount(8), "reasonCode": "node-headroom", "reason": "full"},
            [
                "web denied: wants 8/8Gi, may have 4/4Gi: node-headroom",
                "web grew: 2/2Gi → 4/4Gi, wants 8/8Gi: node-headroom",
            ],
        ),
        ({"faults": ["informant: gone"]}, ["web fault: informant: gone"]),
        ({"load": busy(1.5)}, []),
        ({"size": None, "permit": None, "goal": None}, []),
    ],
)  # fmt: skip
def test_a_difference_between_two_documents_is_an_event(then: dict[str, Any], told: list[str]) -> None:
    assert said(story((0, {"cpus": 2}), (1, then))) == told


def test_a_growth_that_follows_its_permit_is_one_event_with_it() -> None:
    grown: list[tuple[float, dict[str, Any]]] = [
        (0.0, {"cpus": 1}),
        (1.0, {"cpus": 1, "permit": amount(4), "goal": amount(4)}),
    ]
    assert said(story(*grown, (2.0, {"cpus": 4}))) == ["web grew: 1/1Gi → 4/4Gi: as it should be"]
    late = said(story(*grown, (20.0, {"cpus": 4})))
    assert [each.partition(":")[0] for each in late] == ["web grew", "web permit"]


def test_what_is_not_told_for_a_while_is_compared_with_what_was_known() -> None:
    """After its start an agent knows neither sizes nor permits."""
    history = story((0, {"cpus": 2}), (1, {"size": None, "permit": None}), (2, {"cpus": 2}))
    assert said(history) == []
    history.heard(A, "d-1", rows(vm("web", 3)), 3)
    assert said(history) == ["web grew: 2/2Gi → 3/3Gi: as it should be"]


def test_a_denial_that_comes_and_goes_is_counted() -> None:
    denied = {"reasonCode": "node-headroom", "goal": amount(4)}
    history = story(*((at, denied if at % 2 else {}) for at in range(10)))
    (event,) = history.events()
    assert (event.kind, event.times, event.at_s) == (EventKind.DENIED, 5, 9)


def test_faults_begin_and_end() -> None:
    history = story(
        (0, {}), (1, {"faults": ["informant: gone"]}), (2, {"faults": ["informant: away"]}), (3, {})
    )
    assert said(history) == ["web well: no fault any more of: informant", "web fault: informant: gone"]


def test_vms_come_and_go_and_one_that_comes_back_has_no_past() -> None:
    history = story((0, {}))
    history.heard(A, "d-1", rows(vm("web"), vm("new")), 2)
    history.heard(A, "d-1", rows(vm("new")), 4)
    assert history.past(KEY, "cpu", 4) is None
    history.heard(A, "d-1", rows(vm("web"), vm("new")), 6)
    assert known(past(history, width=4).permit) == [None, None, None, 2]
    assert said(history) == [
        "web new: has 2/2Gi",
        "web gone: the agent does not name it any more",
        "new new: has 2/2Gi",
    ]


def test_an_agent_that_starts_again_or_is_away_is_said_once_and_its_vms_keep_their_past() -> None:
    history = story((0, {}))
    for at_s in (2, 4, 6):
        history.missed(A, "connection refused", at_s)
    history.heard(A, "d-2", rows(vm("web")), 8)
    history.missed(A, "late", 10)
    history.heard(A, "d-2", rows(vm("web")), 12)
    assert said(history) == [
        f"agent note: {A} answers again",
        f"agent fault: {A}: late",
        f"agent note: {A} was started again",
        f"agent fault: {A}: connection refused",
    ]
    assert known(past(history, width=7).permit)[0] == 2
    History().missed(A, "nobody has heard it yet", 0)


def test_memory_is_bounded_whatever_comes() -> None:
    history = History(max_vms=10)
    for turn in range(40):
        history.heard(A, "d", rows(*(vm(f"vm-{turn}-{number}") for number in range(20))), turn * 1.0)
    assert len(list(history.events())) == MAX_EVENTS
    assert sum(history.past((A, f"default/vm-39-{each}"), "cpu", 4) is not None for each in range(20)) <= 10
    assert history.past((A, "default/vm-38-0"), "cpu", 4) is None


@pytest.mark.parametrize("text", NASTY)
def test_nothing_that_an_agent_says_is_more_than_a_line(text: str) -> None:
    history = History()
    nasty: dict[str, Any] = {
        "reason": text,
        "reasonCode": text,
        "faults": [text],
        "size": {"cpu": text, "memory": text},
    }
    for at_s, other in enumerate(({}, nasty, {})):
        history.heard(A, text, rows(vm("web") | other, vm(f"x/{text}")), at_s * 1.0)
    assert all(f"{each.subject}{each.text}{each.code}".isprintable() for each in history.events())
