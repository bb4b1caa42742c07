"""Decisions as lines and rows; `parley history`; `parley watch` and its place in the stream."""

import functools
import json
import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hosting.lifecycle import Stop
from parley.listing import watching
from parley.listing.core.decisions import Follow, VmFilter, is_named, line, of_events, wide_line
from parley.listing.history import ago, instant
from parley.reach.ports import NoAnswer
from protocol.agent_pages import JournalEvent
from protocol.explaining import (
    AmountShown,
    DecisionOutcome,
    Decisions,
    DecisionShown,
    ReasonShown,
    StatePage,
    VmShown,
)
from tests.unit.parley.explain.cases import document, explanation
from tests.unit.parley.fake_reach import REFUSED, FakeReach, called
from tests.unit.parley.top_documents import NASTY

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


def amount(cpus: int) -> AmountShown:
    return AmountShown(cpu=str(cpus), memory=f"{cpus}Gi")


def decision(number: int = 1, vm: str = "shop/web", **other: Any) -> DecisionShown:
    """A permit for 4 instead of 2 CPUs."""
    at = f"2026-03-01T12:00:{number:02}.000Z"
    told: dict[str, Any] = {
        "number": number,
        "at": at,
        "last_at": at,
        "vm": vm,
        "uid": "u",
        "node": "n1",
        "outcome": DecisionOutcome.PERMITTED,
        "requested": amount(4),
        "before": amount(2),
        "permit": amount(4),
    }
    return DecisionShown(**(told | other))


FULL = ReasonShown(code="node-headroom", resource="cpu", message="full")
DENIED: dict[str, Any] = {"outcome": DecisionOutcome.DENIED, "permit": amount(2), "limits": (FULL,)}


def heard(instance: str, following: int, *decisions: DecisionShown, are_lost: bool = False) -> Decisions:
    """One answer of `/v1/decisions`."""
    return Decisions(instance=instance, next=following, are_lost=are_lost, decisions=decisions)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (decision(), "2026-03-01T12:00:01.000Z  permitted  shop/web  2/2Gi -> 4/4Gi"),
        (
            decision(2, **DENIED, times=12),
            "2026-03-01T12:00:02.000Z  denied     shop/web  2/2Gi, asked 4/4Gi, node-headroom cpu: full (x12 until 2026-03-01T12:00:02.000Z)",
        ),
        (
            decision(3, outcome=DecisionOutcome.HELD, before=None, permit=None, requested=None),
            "2026-03-01T12:00:03.000Z  held       shop/web  -",
        ),
    ],
)
def test_a_decision_is_a_line(given: DecisionShown, words: str) -> None:
    assert line(given) == words


def test_a_line_cannot_reach_the_terminal() -> None:
    for nasty in NASTY:
        limit = ReasonShown(code=nasty, message=nasty)
        assert line(decision(vm=nasty, limits=(limit,))).isprintable()
        assert wide_line(decision(vm=nasty, uid=nasty, limits=(limit,))).isprintable()


def test_a_wide_line_has_what_tells_a_decision_from_others_and_when_to_ask_again() -> None:
    limits = (ReasonShown(code="pool-failed", message="bank is silent", retry_after_seconds=2.5), FULL)
    given = decision(2, **(DENIED | {"limits": limits}), sequence_number=7, unit=amount(1))
    assert wide_line(given) == (
        "2026-03-01T12:00:02.000Z  denied     shop/web  2/2Gi, asked 4/4Gi, pool-failed: bank is silent (again in 2.5 s); "
        "node-headroom cpu: full  [number=2 seq=7 uid=u node=n1 unit=1/1Gi]"
    )
    assert wide_line(decision(unit=None)).endswith("  2/2Gi -> 4/4Gi  [number=1 uid=u node=n1]")


def test_a_wide_line_cuts_no_message() -> None:
    message = "no zone of that name " * 200
    given = decision(limits=(ReasonShown(code="pool-parked", message=message),))
    assert line(given).endswith("…")
    assert message in wide_line(given)


@pytest.mark.parametrize(
    ("vm", "namespace", "names", "is_meant"),
    [
        ("shop/web", None, (), True),
        ("shop/web", "shop", (), True),
        ("shop/web", "bank", (), False),
        ("shop/web", "shop", ("w*",), True),
        ("shop/web", "bank", ("w*",), False),
        ("shop/web", "bank", ("shop/w*",), True),
        ("shop/web", "shop", ("bank/*",), False),
        ("shop/web", "shop", ("bank/*", "web"), True),
        ("shop/Web", "shop", ("web",), False),
    ],
)
def test_names_are_globs_within_a_namespace_or_with_one(
    vm: str, namespace: str | None, names: tuple[str, ...], is_meant: bool
) -> None:
    assert is_named(vm, namespace, names) is is_meant


def test_filters_of_decisions_hold_together() -> None:
    wanted = VmFilter("shop", ("w*",), ("n1",), outcomes=frozenset({DecisionOutcome.DENIED}))
    assert wanted.passes(decision(**DENIED))
    for other in ({"node": "n2"}, {"vm": "shop/x"}, {"vm": "bank/web"}, {"outcome": DecisionOutcome.HELD}):
        assert not wanted.passes(decision(**(DENIED | other)))


def test_events_of_the_agent_have_their_time_and_what_is_odd_is_left_out() -> None:
    journal: list[dict[str, Any]] = [
        {"secondsAgo": 10.5, "event": "PermitGranted", "fields": {"number": 3}},
        {"secondsAgo": 10.0, "event": "Observed", "fields": {}},
        {"secondsAgo": -1, "event": "X"},
    ]
    events = msgspec.convert(journal, list[JournalEvent])
    told = of_events(events, functools.partial(ago, NOW))
    assert [(each.at, each.what, each.why) for each in told] == [
        ("2026-03-01T12:00:19.500Z", "PermitGranted", '{"number": 3}')
    ]
    assert [each.what for each in of_events(events, functools.partial(ago, NOW), is_whole=True)] == [
        "PermitGranted",
        "Observed",
    ]


def test_moments_are_ordered_whatever_they_are() -> None:
    texts = ["2026-03-01T12:00:01Z", "junk", "2026-03-01T12:00:00.5+00:00", "2026-03-01T12:00:00"]
    assert sorted(texts, key=instant) == ["junk", texts[3], texts[2], texts[0]]


# -------------------------------------------------------------------- history


def history(*arguments: str, agent: dict[str, Any] | None = None) -> tuple[int, list[str], str]:
    """Call it on a VM with two decisions."""
    told = explanation(decisions=(decision(2, **DENIED), decision(1)))
    reach = FakeReach({"/v1/explain/shop/web": told}, {"a": agent})
    done = called(reach, "history", "shop/web", *arguments)
    assert reach.asked[0] == "/v1/explain/shop/web?n=16"
    return done.exit_code, done.stdout.splitlines(), done.stderr


JOURNAL = [{"secondsAgo": 1e6, "event": "Fenced", "fields": {}}, {"secondsAgo": 0.5, "event": "VmChanged"}]
AGENT = {"/v1/vms/shop/web": document(journal=JOURNAL)}


def test_history_is_in_the_order_of_time_and_of_both_programs() -> None:
    code, (heads, *lines), faults = history(agent=AGENT)
    assert (code, faults) == (0, "")
    assert heads.split() == ["TIME", "SOURCE", "WHAT", "BEFORE", "PERMIT", "REQUESTED", "TIMES", "WHY"]
    order = sorted(lines, key=lambda each: instant(each.split()[0]))
    assert lines == order
    assert sorted(each.split()[2] for each in lines) == ["Fenced", "VmChanged", "denied", "permitted"]
    assert lines[0] != lines[1]


def test_history_without_the_agent_says_so() -> None:
    code, lines, faults = history("--no-headers")
    assert (code, [each.split()[2] for each in lines]) == (0, ["permitted", "denied"])
    assert lines[1].endswith("node-headroom cpu: full")
    assert REFUSED in faults


def test_history_of_an_outcome_has_no_events_and_needs_no_agent() -> None:
    code, lines, faults = history("--outcome", "denied", "--no-headers", agent=AGENT)
    assert (code, [each.split()[2] for each in lines], faults) == (0, ["denied"], "")


SILENT = NoAnswer(f"the scheduler {REFUSED}")
IDLE = {"/v1/vms/shop/web": document(journal=[])}


def history_of(scheduler: Any, *arguments: str, agent: dict[str, Any] | None = None) -> tuple[int, str, str]:
    done = called(
        FakeReach({"/v1/explain/shop/web": scheduler}, {"a": agent}), "history", "shop/web", *arguments
    )
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("scheduler", [SILENT, None], ids=["silent", "knows no such VM"])
def test_history_of_an_outcome_is_none_where_the_scheduler_tells_nothing(scheduler: NoAnswer | None) -> None:
    code, out, faults = history_of(scheduler, "--outcome", "denied", agent=AGENT)
    assert (code, out) == (1, "")
    (fault,) = faults.splitlines()
    assert fault.startswith("the scheduler ")


def test_history_as_json_tells_silence_from_no_decisions() -> None:
    code, out, faults = history_of(SILENT, "--outcome", "denied", "-o", "json", agent=AGENT)
    told = json.loads(out)
    assert (code, told["decisions"], told["events"], told["agentFault"]) == (1, [], [], None)
    assert [told["schedulerFault"]] == faults.splitlines() == [SILENT.fault]
    none = explanation(decisions=())
    code, out, faults = history_of(none, "--outcome", "denied", "-o", "json", agent=AGENT)
    told = json.loads(out)
    assert (code, told["decisions"], told["schedulerFault"], faults) == (0, [], None, "")
    code, out, _ = history_of(none, "-o", "json")
    assert (code, json.loads(out)["agentFault"]) == (0, f"the agent of a {REFUSED}")


def test_history_says_that_nothing_was_decided_only_where_the_scheduler_says_so() -> None:
    nothing = "nothing has been decided of it yet\n"
    assert history_of(explanation(decisions=()), agent=IDLE) == (0, "", nothing)
    assert history_of(explanation(decisions=()), "--outcome", "denied") == (0, "", nothing)
    done = history_of(explanation(decisions=(decision(),)), "--outcome", "held", "--outcome", "denied")
    assert done == (0, "", "no decision on it that is remembered is held or denied\n")
    assert history_of(SILENT, agent=IDLE) == (0, "", f"{SILENT.fault}\n")


def test_history_as_json_has_decisions_and_events() -> None:
    _, (text,), _ = history("-o", "json", agent=AGENT)
    told = json.loads(text)
    assert [each["number"] for each in told["decisions"]] == [1, 2]
    assert [each["event"] for each in told["events"]] == ["Fenced", "VmChanged"]


def test_history_of_a_vm_that_nobody_knows_is_an_error() -> None:
    done = called(FakeReach({}, {"a": {}}), "history", "shop/web")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "(unknown-vm)" in done.stderr
    assert called(FakeReach({}), "history", "a/b/c").exit_code == 2
    two = called(FakeReach({}), "history", "shop/web", "-n", "bank")
    assert (two.exit_code, "--namespace another one: bank" in two.stderr) == (2, True)


# -------------------------------------------------------------------- watch


def test_a_watch_begins_with_the_next_decision_or_with_what_is_remembered() -> None:
    first = heard("i", 7, decision(6), decision(7))
    assert Follow().heard(first).decisions == ()
    assert Follow(is_from_start=True).heard(first).decisions == first.decisions
    follow = Follow().heard(first).follow
    assert (follow.instance, follow.after, follow.is_first) == ("i", 7, False)


def test_a_watch_goes_on_where_it_was_and_says_what_was_lost() -> None:
    follow = Follow().heard(heard("i", 7)).follow
    step = follow.heard(heard("i", 9, decision(8), decision(9)))
    assert ([each.number for each in step.decisions], step.follow.after, step.note) == ([8, 9], 9, "")
    assert "forgotten" in step.follow.heard(heard("i", 99, are_lost=True)).note


def test_a_watch_of_another_process_begins_anew_without_losing_any() -> None:
    follow = Follow().heard(heard("i", 700)).follow
    step = follow.heard(heard("j", 3))
    assert (step.decisions, step.follow.after, step.is_more) == ((), 0, True)
    assert "another scheduler process" in step.note
    again = step.follow.heard(heard("j", 3, *map(decision, (1, 2, 3))))
    assert [each.number for each in again.decisions] == [1, 2, 3]


def test_a_watch_asks_for_the_newest_decisions_only_where_it_tells_none_of_them() -> None:
    assert Follow().query == "after=0&limit=500"
    assert Follow(is_from_start=True).query == "after=0&limit=500&oldest=true"
    empty = Follow().heard(heard("i", 0)).follow
    assert empty.query == "after=0&limit=500&oldest=true", "any number may be decided until the next look"
    later = empty.heard(heard("i", 7, decision(7))).follow
    assert later.query.startswith("after=7&")
    restarted = later.heard(heard("j", 1300)).follow
    assert restarted.query == "after=0&limit=500&oldest=true"


def test_a_watch_goes_on_at_once_with_what_one_answer_did_not_hold() -> None:
    """Both from the start and after a restart; what was forgotten by then is said of a restart, from the start nobody has missed it."""
    page = tuple(map(decision, range(1, 501)))
    step = Follow(is_from_start=True).heard(heard("i", 500, *page, are_lost=True))
    assert (len(step.decisions), step.is_more, step.note) == (500, True, "")
    assert Follow().heard(heard("i", 500, *page)).is_more is False
    anew = step.follow.heard(heard("j", 4200)).follow.heard(heard("j", 500, *page, are_lost=True))
    assert (len(anew.decisions), anew.is_more) == (500, True)
    assert "forgotten" in anew.note


class Waits:
    """The waits of a watch; the end is requested at the last one."""

    def __init__(self, count: int) -> None:
        self.seconds: list[float] = []
        self._count = count

    async def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) >= self._count


async def watched(answers: list[Any], rounds: int, **options: Any) -> tuple[FakeReach, Waits]:
    reach, waits = FakeReach({"/v1/decisions": answers}), Waits(rounds)
    watch = watching.DecisionWatch(watching.WatchOptions(**options), waits, random.Random(1))
    assert await watch.run(reach) == 0
    return reach, waits


async def test_a_watch_survives_silence_and_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    silent = NoAnswer("the scheduler does not answer")
    answers = [
        heard("i", 700, decision(700)),
        silent,
        silent,
        heard("j", 1),
        heard("j", 1, decision(1)),
        heard("j", 2, decision(2, **DENIED)),
    ]
    reach, waits = await watched(answers, 6)
    out, err = capsys.readouterr()
    assert [each.split()[1] for each in out.splitlines()] == ["permitted", "denied"]
    assert err.splitlines() == [
        "the scheduler does not answer; asking again",
        "the scheduler answers again",
        "another scheduler process answers: its decisions follow",
    ]
    assert [path.partition("after=")[2] for path in reach.asked] == [
        "0&limit=500",
        *(f"{after}&limit=500&oldest=true" for after in (700, 700, 700, 0, 1)),
    ]
    assert waits.seconds[0] == watching.PERIOD_S
    assert 0 < waits.seconds[1] < waits.seconds[2] <= watching.RETRY.cap_s
    assert waits.seconds[3] == 0


async def test_a_watch_prints_what_passes_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [heard("i", 3, decision(1), decision(2, **DENIED), decision(3, vm="bank/x", **DENIED))]
    await watched(
        answers, 5, is_from_start=True, output="json", outcomes=("denied",), namespace="shop", count=1
    )
    (told,) = capsys.readouterr().out.splitlines()
    assert json.loads(told)["number"] == 2


def test_a_watch_that_nobody_answers_first_is_an_error() -> None:
    done = called(FakeReach(None), "watch")
    assert (done.exit_code, done.stdout) == (1, "")
    assert REFUSED in done.stderr


def test_a_watch_ends_after_its_count() -> None:
    answers = {"/v1/decisions": heard("i", 3, decision(1), decision(2), decision(3))}
    done = called(FakeReach(answers), "watch", "-A", "--since-start", "--count", "2")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("output", "end"), [("table", "2/2Gi -> 4/4Gi"), ("wide", "[number=3 uid=u node=n1]")]
)
def test_a_watch_is_wide_where_it_is_asked_for(output: str, end: str) -> None:
    answers = {"/v1/decisions": heard("i", 3, decision(3))}
    done = called(FakeReach(answers), "watch", "-A", "--since-start", "--count", "1", "-o", output)
    assert done.exit_code == 0
    (told,) = done.stdout.splitlines()
    assert told.endswith(end)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"namespace": "default"}, "namespace default has no VMs; VMs in other namespaces: 3 (all: -A)"),
        (
            {"namespace": "shop", "names": ("x*",)},
            "namespace shop has 2 VMs, none of which is asked for; VMs in other namespaces: 1 (all: -A)",
        ),
        (
            {"namespace": "bank", "names": ("x*",)},
            "namespace bank has 1 VM, none of which is asked for; VMs in other namespaces: 2 (all: -A)",
        ),
        ({"nodes": ("n9",)}, "none of 3 VMs is asked for"),
        ({"namespace": "shop"}, ""),
        ({"namespace": "default", "names": ("shop/web",)}, ""),
        ({}, ""),
    ],
)
async def test_a_watch_of_nobody_says_how_many_vms_are_elsewhere(
    options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("shop/web", "shop/db", "bank/db")
    told: dict[str, Any] = {"node": "n1", "permit": amount(1), "reserved": amount(1), "maximum": amount(1)}
    vms = tuple(VmShown(vm=each, uid=each, is_settled=True, is_migrating=False, **told) for each in names)
    state = StatePage(instance="i", epoch=0, at="2026-03-01T12:00:00Z", vms=vms)
    reach = FakeReach({"/v1/decisions": heard("i", 3), "/v1/state": state})
    watch = watching.DecisionWatch(watching.WatchOptions(**options), Waits(2))
    assert await watch.run(reach) == 0
    assert capsys.readouterr().err == (f"nobody to watch yet: {said}\n" if said else "")


async def test_a_watch_ends_at_once_when_the_end_is_requested() -> None:
    stop = Stop()
    stop.request()
    reach = FakeReach({"/v1/decisions": heard("i", 1)})
    assert await watching.DecisionWatch(watching.WatchOptions(), stop.wait_for).run(reach) == 0
    assert len(reach.asked) == 1
