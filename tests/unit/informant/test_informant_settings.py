"""The informant's settings: defaults of the core, every key where it belongs, every fault at once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hosting.settings import SettingsError, parse
from informant.core.guard import Guard, GuardSettings
from informant.core.limits import Spare, Thresholds
from informant.core.report import CgroupReading, Reading
from informant.core.sessions import HEALTH_TOLERANCE, WishTiming
from informant.core.shortage import Shortage, ShortageDetector
from informant.settings import DeadlineSettings, HealthSettings, InformantSettings
from tests.unit.informant.cgroup_tree import MIB

FILE = Path("informant.yaml")
# No value is a default, and none comes twice within a group.
FULL = """
cgroup: system.slice/workload
state: /var/lib/parley
events: poll
sample: 0.25
protect: false
advertise: 10.0.0.7:20301
deadlines: {id: 2, resume: 3, suspend: 4, tryUpscale: 5, reclaim: 6.5}
health: {every: 7, tolerance: 8}
memory:
  margin: 11Mi
  reserve: 12Mi
  waitingShare: 0.13
  over: 14
  left: 15Mi
  leftShare: 0.16
  freeze: 0.17
  freezeEvery: 18
  relief: 19Mi
  reliefEvery: 20
  calm: 21
  trial: 22
cpu: {waitingShare: 0.31, busyShare: 0.32, over: 33}
wish: {expires: 41, calm: 42, hold: 44, arrival: 45}
"""


def read(text: str) -> InformantSettings:
    return parse(FILE, text.encode(), InformantSettings)


def faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert caught.value.path == FILE
    return caught.value.faults


def paths(content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        below = paths(value) if isinstance(value, dict) else {"": value}
        found |= {f"{key}.{path}".rstrip("."): each for path, each in below.items()}
    return found


def all_of(settings: InformantSettings, *, exclude_defaults: bool = False) -> dict[str, Any]:
    return paths(settings.model_dump(by_alias=True, exclude_defaults=exclude_defaults))


def test_without_a_file_everything_is_as_the_core_has_it() -> None:
    for settings in (InformantSettings(), read(""), read("memory: {}\ncpu: {}\nwish: {}\nhealth: {}\n")):
        assert settings.thresholds() == Thresholds()
        assert settings.guard() == GuardSettings()
        assert settings.wishes() == WishTiming()
        assert settings.health.tolerance == HEALTH_TOLERANCE
        assert settings.sources() == ("inotify", "poll", "polling")
        assert (settings.cgroup, settings.state) == (None, Path("/run/parley-informant"))
        assert (settings.protect, settings.sample) == (True, 0.5)
        assert settings.health == HealthSettings.model_validate({"every": 10, "tolerance": 3})
        assert settings.deadlines == DeadlineSettings.model_validate(
            {"id": 1, "resume": 1, "suspend": 1, "tryUpscale": 1, "reclaim": 1.5}
        )


def test_every_key_of_a_file_arrives_where_it_belongs() -> None:
    settings = read(FULL)
    assert settings.thresholds() == Thresholds(
        cpu_waiting_share=0.31,
        cpu_busy_share=0.32,
        cpu_over_s=33.0,
        memory_waiting_share=0.13,
        memory_over_s=14.0,
        arrival_s=45.0,
        spare=Spare(11 * MIB, 15 * MIB, 0.16),
    )
    assert settings.guard() == GuardSettings(
        spare=Spare(11 * MIB, 15 * MIB, 0.16),
        reserve_bytes=12 * MIB,
        freeze_s=0.17,
        freeze_every_s=18.0,
        relief_bytes=19 * MIB,
        relief_every_s=20.0,
        calm_s=21.0,
        hold_s=44.0,
        trial_s=22.0,
        reclaim_s=6.5,
    )
    assert settings.wishes() == WishTiming(expires_s=41.0, calm_s=42.0)
    assert settings.sources() == ("poll",)
    assert (settings.cgroup, settings.state) == ("system.slice/workload", Path("/var/lib/parley"))
    assert (settings.sample, settings.protect) == (0.25, False)
    assert (settings.health.every, settings.health.tolerance) == (7.0, 8)
    deadlines = settings.deadlines
    assert (deadlines.id, deadlines.resume, deadlines.suspend) == (2.0, 3.0, 4.0)
    assert (deadlines.try_upscale, deadlines.reclaim) == (5.0, 6.5)


def test_the_full_file_holds_every_key_and_no_default() -> None:
    assert all_of(read(FULL), exclude_defaults=True).keys() == all_of(InformantSettings()).keys()


# ---------------------------------------------------------------- faults

WRONG = """
cgroup: 5
state: ""
sample: 0
protect: 1
colour: red
deadlines: {id: -1, reclaim: soon}
health: {every: 3601, tolerance: 0}
memory: {margin: -1, waitingShare: 1.5, leftShare: 1, freeze: 1.01, relief: 0, calm: -0.1}
cpu: {waitingShare: 0, busy_share: 0.5, over: .inf}
wish: none
"""


def test_every_fault_is_told_at_once_with_path_value_and_rule() -> None:
    assert sorted(faults(WRONG)) == sorted(
        [
            "cgroup: must be a text (found 5); put it in quotes",
            "state: must be a path (found '')",
            "sample: must be at least 0.05 (found 0)",
            "protect: must be true or false (found 1)",
            "colour: there is no such setting",
            "deadlines.id: must be above 0 (found -1)",
            "deadlines.reclaim: must be a number (found 'soon')",
            "health.every: must be at most 3600 (found 3601)",
            "health.tolerance: must be at least 1 (found 0)",
            "memory.margin: must be memory in whole bytes, 0 or more, such as 4Gi or 512Mi (found -1)",
            "memory.waitingShare: must be at most 1 (found 1.5)",
            "memory.leftShare: must be below 1 (found 1)",
            "memory.freeze: must be at most 1 (found 1.01)",
            "memory.relief: must be above 0 (found 0)",
            "memory.calm: must be at least 0 (found -0.1)",
            "cpu.waitingShare: must be above 0 (found 0)",
            "cpu.busy_share: there is no such setting",
            "cpu.over: must be at most 3600 (found inf)",
            "wish: must be a mapping (found 'none')",
        ]
    )


SECONDS = [
    *(f"deadlines.{name}" for name in ("id", "resume", "suspend", "tryUpscale", "reclaim")),
    *(f"memory.{name}" for name in ("over", "freezeEvery", "reliefEvery")),
    "health.every",
    "cpu.over",
    "wish.expires",
    "wish.calm",
]
SHARES = ["memory.waitingShare", "cpu.waitingShare", "cpu.busyShare"]
AMOUNTS = ["memory.margin", "memory.reserve", "memory.left", "memory.relief"]
# path → (too little, least, most, too much); of memory there is no most, only what is no whole byte
BOUNDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "sample": (0.049, 0.05, 60, 60.1),
    **dict.fromkeys(SECONDS, (0, 0.001, 3600, 3600.1)),
    **dict.fromkeys(SHARES, (0, 0.001, 1, 1.001)),
    **dict.fromkeys(AMOUNTS, (-1, 0, 2**40, "1500m")),
    "memory.relief": (0, 1, 2**40, "1500m"),
    "memory.leftShare": (-0.01, 0, 0.999, 1),
    "memory.freeze": (-0.01, 0, 1, 1.01),
    **dict.fromkeys(("memory.calm", "wish.hold", "wish.arrival"), (-0.01, 0, 3600, 3600.1)),
    "memory.trial": (-0.01, 0, 60, 60.1),
    "health.tolerance": (0, 1, 100, 101),
}


def _one(path: str, value: object) -> str:
    group, _, name = path.rpartition(".")
    return json.dumps({group: {name: value}} if group else {name: value})


def test_every_number_has_its_bounds_here() -> None:
    assert set(BOUNDS) == all_of(InformantSettings()).keys() - {
        "cgroup",
        "state",
        "events",
        "protect",
        "advertise",
    }


@pytest.mark.parametrize("path", BOUNDS)
def test_a_number_lies_between_its_bounds(path: str) -> None:
    little, least, most, much = BOUNDS[path]
    wrong: list[Any] = [little, much, float("nan"), float("inf"), [], "lots"]
    for value in wrong if path in SHARES else [*wrong, None]:
        (fault,) = faults(_one(path, value))
        assert fault.startswith(f"{path}: "), fault
    for value in (least, most):
        assert all_of(read(_one(path, value)))[path] == value


@pytest.mark.parametrize("name", ["inotify", "poll", "polling"])
def test_one_source_of_events_may_be_named(name: str) -> None:
    assert read(f"events: {name}").sources() == (name,)
    assert read("events: auto").sources() == ("inotify", "poll", "polling")


@pytest.mark.parametrize("value", ["fanotify", "", None, True, ["poll"]])
def test_a_source_of_events_that_there_is_not_is_a_fault(value: object) -> None:
    (fault,) = faults(_one("events", value))
    assert fault.startswith("events: must be 'auto', 'inotify', 'poll' or 'polling'")
    assert not isinstance(value, str) or fault.endswith(f" (found {value!r})")


@pytest.mark.parametrize(
    "text", ["sample: true", "sample: '0.5'", "memory: {freeze: true}", "cpu: {over: '1'}"]
)
def test_nothing_is_coerced(text: str) -> None:
    assert len(faults(text)) == 1


WRONG_TEXTS = [("cgroup", ""), ("cgroup", "x" * 4097), ("cgroup", ["a"]), ("state", 5), ("state", None)]


@pytest.mark.parametrize(("path", "value"), WRONG_TEXTS)
def test_a_path_is_a_text_that_says_something(path: str, value: object) -> None:
    (fault,) = faults(_one(path, value))
    assert fault.startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["workload", "system.slice/workload", "/sys/fs/cgroup/workload", "x" * 4096])
def test_a_group_is_named_as_it_is(name: str) -> None:
    assert read(_one("cgroup", name)).cgroup == name
    assert read("cgroup: null").cgroup is None


# ---------------------------------------------------------------- what the descriptions promise

STARVED = CgroupReading(pressure_s={"cpu_waiting": 0.0, "memory_waiting": 0.0})


def shortage(settings: InformantSettings) -> Shortage:
    """The shortage of a guest whose CPUs were busy, and all of whose tasks waited, all the time."""
    detector, found = ShortageDetector(settings.thresholds()), Shortage()
    for at_s in range(5):
        stalled = {"cpu_waiting": float(at_s), "memory_waiting": float(at_s)}
        reading = Reading(0, 0, 0, 2.0 * at_s, 2, 2**32, 2**31, stalled)
        detector, found = detector.see(reading, None, float(at_s))
    return found


def test_null_switches_a_threshold_off_and_no_other() -> None:
    assert shortage(read("")).resources() == shortage(read("cpu: {busyShare: null}")).resources()
    waiting = shortage(read("cpu: {busyShare: null}"))
    assert (waiting.cpu[:24], bool(waiting.memory)) == ("tasks waited for a CPU 1", True)
    busy = shortage(read("cpu: {waitingShare: null}"))
    assert (busy.cpu[:20], bool(busy.memory)) == ("all 2 CPUs were busy", True)
    neither = shortage(read("cpu: {waitingShare: null, busyShare: null}"))
    assert (neither.cpu, bool(neither.memory)) == ("", True)
    assert shortage(read("memory: {waitingShare: null}")).memory == ""
    every = "cpu: {waitingShare: null, busyShare: null}\nmemory: {waitingShare: null}"
    assert shortage(read(every)) == Shortage()


def test_a_share_of_one_is_still_reached() -> None:
    """It is not what switches a threshold off."""
    every = "cpu: {waitingShare: 1, busyShare: null}\nmemory: {waitingShare: 1}"
    assert (bool(shortage(read(every)).cpu), bool(shortage(read(every)).memory)) == (True, True)
    assert shortage(read("cpu: {waitingShare: null, busyShare: 1}")).cpu != ""


def test_a_freeze_of_no_length_is_none() -> None:
    assert not Guard(read("memory: {freeze: 0}").guard()).hit(10.0).is_frozen
    assert Guard(read("memory: {freeze: 0.001}").guard()).hit(10.0).is_frozen


def test_the_kernel_has_less_time_to_reclaim_than_an_agent_waits() -> None:
    """2 s as published (reference/neon.md); a downscale that is answered later counts as failed."""
    assert 0 < InformantSettings().deadlines.reclaim < 2.0
