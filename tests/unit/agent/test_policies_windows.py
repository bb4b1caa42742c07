"""Time windows as they are configured: cron expressions, time zones, and the two nights when the clock changes."""

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from agent.core.policies.windows import Bar, Edges, ResourceLimits, UnitLimit, Window, WindowLimits
from agent.daemon.windows import Schedule, Timed, faults_of, following, last, of, read
from hosting.settings import FaultsError

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # its clock changes by half an hour
OFFICE = {"name": "office", "from": "0 8 * * MON-FRI", "until": "0 18 * * MON-FRI", "floor": 3}
NIGHT = {"name": "night", "from": "0 22 * * *", "until": "0 6 * * *", "ceiling": 2}


def _s(text: str) -> float:
    """Seconds since the epoch; UTC unless the text has an offset."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(moment_s: float | None, zone: ZoneInfo) -> str:
    assert moment_s is not None
    return datetime.fromtimestamp(moment_s, zone).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("at", "has_floor", "has_ceiling"),
    [
        ("2026-03-02T07:59:59", False, False),  # a Monday
        ("2026-03-02T08:00:00", True, False),
        ("2026-03-02T17:59:59", True, False),
        ("2026-03-02T18:00:00", False, False),
        ("2026-03-02T22:00:00", False, True),
        ("2026-03-03T05:59:59", False, True),
        ("2026-03-03T06:00:00", False, False),
        ("2026-03-07T12:00:00", False, False),
        ("2026-03-07T23:00:00", False, True),
    ],
)
def test_a_window_is_open_from_until(at: str, has_floor: bool, has_ceiling: bool) -> None:
    both = ResourceLimits(Bar(3, "office") if has_floor else None, Bar(2, "night") if has_ceiling else None)
    assert of([OFFICE, NIGHT]).at(_s(at)) == WindowLimits(both, both)


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"floor": 3}, Window("w", UnitLimit(3, 3))),
        ({"floor": {"cpu": 2, "memory": 6}}, Window("w", UnitLimit(2, 6))),
        ({"ceiling": {"memory": 6}}, Window("w", ceiling=UnitLimit(memory=6))),
        ({"floor": 0, "ceiling": {"cpu": 4}}, Window("w", UnitLimit(0, 0), UnitLimit(cpu=4))),
    ],
)
def test_a_number_is_for_both_resources_or_each_has_its_own(entry: dict[str, object], window: Window) -> None:
    (timed,), faults = read([{"name": "w", "from": "0 8 * * *", "until": "0 9 * * *", **entry}])
    assert (timed.window, faults) == (window, [])


@pytest.mark.parametrize(
    ("expression", "at", "before", "after"),
    [
        # Spring, 29 March 2026: 02:00 becomes 03:00. What falls into the gap happens at its end.
        ("30 2 * * *", "2026-03-29T01:59+01:00", "2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00"),
        ("30 2 * * *", "2026-03-29T03:00+02:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"),
        ("0 4 * * *", "2026-03-29T03:30+02:00", "2026-03-28T04:00+01:00", "2026-03-29T04:00+02:00"),
        # Autumn, 25 October 2026: 03:00 becomes 02:00. A fixed time happens once, the first time.
        ("15 2 * * *", "2026-10-25T02:14+02:00", "2026-10-24T02:15+02:00", "2026-10-25T02:15+02:00"),
        ("15 2 * * *", "2026-10-25T02:15+02:00", "2026-10-25T02:15+02:00", "2026-10-26T02:15+01:00"),
        ("15 2 * * *", "2026-10-25T02:05+01:00", "2026-10-25T02:15+02:00", "2026-10-26T02:15+01:00"),
        ("15 2 * * *", "2026-10-25T02:20+01:00", "2026-10-25T02:15+02:00", "2026-10-26T02:15+01:00"),
        # Every hour means every hour: also the one that comes twice.
        ("0 * * * *", "2026-10-25T02:30+02:00", "2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00"),
        ("0 * * * *", "2026-03-29T01:30+01:00", "2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00"),
    ],
)
def test_the_nights_when_the_clock_changes(expression: str, at: str, before: str, after: str) -> None:
    assert _shown(last(expression, BERLIN, _s(at)), BERLIN) == before
    assert _shown(following(expression, BERLIN, _s(at)), BERLIN) == after


@pytest.mark.parametrize(
    ("zone", "night"),
    [
        (BERLIN, "2026-03-29"),
        (BERLIN, "2026-10-25"),
        (NEW_YORK, "2026-03-08"),
        (NEW_YORK, "2026-11-01"),
        (LORD_HOWE, "2026-04-05"),
        (LORD_HOWE, "2026-10-04"),
    ],
)
@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "45 1 * * *", "0 3 * * *", "0 * * * *", "*/20 1-3 * * *", "30 1,2 * * SUN"]
)
def test_forwards_and_backwards_agree_around_a_change_of_the_clock(
    zone: ZoneInfo, night: str, expression: str
) -> None:
    at_s, end_s = _s(night) - 36 * 3600, _s(night) + 48 * 3600
    moments: list[float] = []
    while at_s < end_s:
        found = following(expression, zone, at_s)
        assert found is not None
        assert found > at_s
        moments.append(found)
        at_s = found
    for before, after in pairwise(moments):
        assert last(expression, zone, before) == before
        assert last(expression, zone, after - 1) == before
        assert following(expression, zone, (before + after) // 2) == after


@pytest.mark.parametrize(
    ("begin", "start", "end", "opened"),
    [
        # The clock leaves out 02:00 to 03:00: what should end there ends at 01:00 UTC.
        ("2026-03-29T00:00", "0 1 * * *", "30 2 * * *", [0, 60]),
        ("2026-03-29T00:00", "10 2 * * *", "50 2 * * *", []),
        # 02:00 to 03:00 comes twice, and the window once.
        ("2026-10-25T00:00", "15 2 * * *", "45 2 * * *", [15, 45]),
        ("2026-01-05T06:00", "0 8 * * *", "30 8 * * *", [60, 90]),
        ("2026-07-06T05:00", "0 8 * * *", "30 8 * * *", [60, 90]),  # in summer an hour earlier
    ],
)
def test_a_window_goes_by_the_clock_of_its_zone(begin: str, start: str, end: str, opened: list[int]) -> None:
    """`opened` are the minutes after `begin`, in UTC."""
    schedule = of([{**NIGHT, "from": start, "until": end, "zone": "Europe/Berlin"}])
    minutes = [_s(begin) + 60 * minute for minute in range(180)]
    found = [at_s for at_s in minutes if schedule.at(at_s) != WindowLimits()]
    assert found == (minutes[opened[0] : opened[1]] if opened else [])


def test_a_schedule_asks_again_only_at_the_next_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    edges = Timed.edges

    def counted(self: Timed, at_s: float) -> Edges:
        asked.append(at_s)
        return edges(self, at_s)

    monkeypatch.setattr(Timed, "edges", counted)
    schedule = of([OFFICE])
    nine, six, next_day = (_s(f"2026-03-{at}") for at in ("02T09:00", "02T18:00", "03T08:00"))
    found = [schedule.at(at_s) for at_s in (nine, nine + 1, six - 1, six, six + 1, nine)]
    assert [each.cpu.floor is not None for each in found] == [True, True, True, False, False, True]
    assert asked == [nine, six, nine]  # the clock was set back: looked at anew
    assert schedule.next_s(nine) == six
    assert schedule.next_s(six) == next_day


def test_without_windows_nothing_holds() -> None:
    assert Schedule(()).at(0.0) == WindowLimits()
    assert Schedule(()).next_s(0.0) is None
    assert of([]).at(1e9) == WindowLimits()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"from": "0 8 * *"}, "from"),
        ({"from": "0 0 8 * * *"}, "from"),
        ({"from": "60 8 * * *"}, "from"),
        ({"from": "* * * * BOB"}, "from"),
        ({"from": "0 0 31 2 *"}, "from"),
        ({"from": "0 0 */30 2 SUN#5"}, "from"),
        ({"from": "* 8 * * *"}, "from"),
        ({"from": "0,10,20,30,40 8 * * *"}, "from"),
        ({"from": "0 0 * * 5L/2"}, "from"),
        ({"until": "9" * 5000}, "until"),
        ({"until": f"0 {'9' * 80} * * *"}, "until"),
        ({"until": 7}, "until"),
        ({"until": "0 8 * *  mon-fri"}, "until"),
        ({"zone": "Europe/Nowhere"}, "zone"),
        ({"zone": "../../etc/passwd"}, "zone"),
        ({"zone": "Europe"}, "zone"),
        ({"zone": ""}, "zone"),
        ({"floor": -1}, "floor"),
        ({"floor": 2.0}, "floor"),
        ({"floor": 3, "ceiling": 2}, "floor"),
        ({"floor": {"cpu": 3}, "ceiling": {"cpu": 2, "memory": 9}}, "floor"),
        ({"floor": {}}, "floor"),
        ({"floor": {"cpu": -1}}, "floor.cpu"),
        ({"floor": {"cpu": 1, "disk": 1}}, "floor.disk"),
        ({"floor": True}, "floor"),
        ({"floor": None}, ""),
        ({"name": ""}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_window_is_named_and_the_others_hold(change: dict[str, object], path: str) -> None:
    found, faults = read([{**OFFICE, **change}, NIGHT], "here")
    assert [timed.window.name for timed in found] == ["night"]
    assert {fault.partition(": ")[0] for fault in faults} == {f"here[0].{path}" if path else "here[0]"}
    assert faults_of([{**OFFICE, **change}, NIGHT], "here") == faults


@pytest.mark.parametrize("data", [None, {}, "x", 7, [OFFICE] * 17])
def test_a_list_of_windows_is_needed(data: object) -> None:
    found, faults = read(data)
    assert found == ()
    assert len(faults) == 1


def test_a_name_may_come_once_and_items_are_mappings() -> None:
    assert faults_of([OFFICE, OFFICE, 7]) == [
        "windows[1].name: 'office' is used more than once",
        "windows[2]: must be a mapping (found 7)",
    ]
    with pytest.raises(FaultsError):
        of([7])
