"""The annotations of a VM set its scaling: good values count, bad ones are reported, nothing is raised."""

import dataclasses
import json
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core.model import YieldMode
from agent.core.policies.remembered import Zones
from agent.core.policies.stepwise import Pressure
from agent.core.policies.utilisation import Utilisation
from agent.core.ports import VmDescription
from agent.daemon.annotations import Overrides, VmDefaults, checks, read
from agent.daemon.policies import build, standard
from agent.daemon.runner_factory import vm_of
from hosting.kubernetes.annotations import MAX_BYTES, settle
from hosting.kubernetes.names import (
    BOUNDS,
    CONFIG,
    METRICS_PLUGIN,
    NEON_BOUNDS,
    NEON_CONFIG,
    SUB_PRIORITY,
    UNIT,
    YIELD,
)
from protocol.values import Bounds, ComputeUnit, Resources
from tests.support.amounts import GIB, cu
from tests.unit.agent.driver import VM

REGISTRY = standard(())
BASE = VmDefaults(Bounds(cu(1), cu(8)), GIB, cu(1))
NEON = dataclasses.replace(BASE, is_neonvm=True, bounds=Bounds(cu(1), cu(8, 16)))
TIED = Overrides(is_tied=True)
"""Of a NeonVM object that says nothing."""
OFFICE = {"name": "office", "from": "0 8 * * *", "until": "0 18 * * *", "floor": 3}


def _read(configured: VmDefaults = BASE, **values: object) -> tuple[Overrides, list[str]]:
    names = {
        "config": CONFIG,
        "unit": UNIT,
        "bounds": BOUNDS,
        "neon_config": NEON_CONFIG,
        "neon_bounds": NEON_BOUNDS,
    }
    texts = {
        names[key]: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }
    return read(texts, configured, REGISTRY)


def _paths(faults: list[str]) -> list[str]:
    return [": ".join(fault.split(": ")[:2]) for fault in faults]


def _amount(cpu: object, memory: object) -> dict[str, object]:
    return {"cpu": cpu, "memory": memory}


def test_without_annotations_nothing_is_replaced() -> None:
    assert read({}, BASE, REGISTRY) == (Overrides(), [])
    assert read({"other/config": "{"}, NEON, REGISTRY) == (TIED, [])


def test_policies_and_windows_of_a_vm() -> None:
    chosen = ["pressure", {"name": "utilisation", "args": {"cpuTarget": 0.5}}]
    found, faults = _read(config={"policies": chosen, "windows": [OFFICE]})
    assert (faults, found.bounds) == ([], None)
    assert found.policies is not None
    assert dict(found.policies.policies) == {
        "pressure": Pressure(),
        "utilisation": Utilisation(cpu_target=500_000),
    }
    assert [timed.window.name for timed in found.windows or ()] == ["office"]
    assert _read(config={"windows": []})[0].windows == (), "the configured ones are taken away"


def test_a_bad_policy_leaves_the_configured_ones_and_the_windows_count() -> None:
    found, faults = _read(config={"policies": ["pressure", "nope"], "windows": [OFFICE], "x": 1})
    assert found.policies is None
    assert found.windows is not None
    assert _paths(faults) == [f"{CONFIG}: policies[1]", f"{CONFIG}: x"]


def test_a_bad_window_leaves_the_others_and_all_bad_ones_the_configured() -> None:
    found, faults = _read(config={"windows": [OFFICE, {**OFFICE, "name": "b", "zone": "Nowhere"}]})
    assert found.windows is not None
    assert len(found.windows) == 1
    assert _paths(faults) == [f"{CONFIG}: windows[1].zone"]
    found, faults = _read(config={"windows": [7]})
    assert found.windows is None
    assert _paths(faults) == [f"{CONFIG}: windows[0]"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '"x"',
        "NaN",
        '{"policies": NaN}',
        '{"policies": [], "policies": []}',
        "[" * 9999,
        '{"x": ' + "9" * 5000 + "}",
        '{"policies": "' + "x" * MAX_BYTES + '"}',
    ],
)
@pytest.mark.parametrize("name", [CONFIG, UNIT, BOUNDS, NEON_CONFIG, NEON_BOUNDS])
def test_what_is_no_json_object_is_reported(text: str, name: str) -> None:
    found, faults = read({name: text}, NEON, REGISTRY)
    assert found == TIED
    assert len(faults) == 1
    assert faults[0].startswith(f"{name}: ")
    assert len(faults[0]) < 300


def test_an_annotation_that_is_no_text_is_reported() -> None:
    found, faults = read({CONFIG: 7, BOUNDS: [], NEON_BOUNDS: {}}, NEON, REGISTRY)
    assert found == TIED
    assert [fault.partition(": ")[0] for fault in faults] == [CONFIG, BOUNDS, NEON_BOUNDS]


@pytest.mark.parametrize(
    ("bounds", "expected", "paths"),
    [
        ({"min": _amount("500m", "512Mi"), "max": _amount(4, "4Gi")}, Bounds(cu(0.5), cu(4)), []),
        ({"min": _amount(2, "2Gi")}, Bounds(cu(2), cu(8)), []),
        ({"max": _amount(16, "16Gi")}, Bounds(cu(1), cu(16)), []),
        ({"min": _amount(2, "x"), "max": _amount(4, "4Gi")}, Bounds(cu(1), cu(4)), ["min.memory"]),
        ({"min": _amount(-1, None), "max": 7}, None, ["min.cpu", "max"]),
        ({"min": {"cpu": 2}, "max": {"memory": "4Gi"}}, Bounds(cu(2, 1), cu(8, 4)), []),
        ({"min": {}, "max": {"cpu": None}}, None, ["min", "max"]),
        ({"min": _amount(1, "1Gi"), "most": 7}, Bounds(cu(1), cu(8)), ["most"]),
        ({}, None, []),
    ],
)
def test_a_bound_that_is_wrong_or_left_out_stays(
    bounds: dict[str, object], expected: Bounds | None, paths: list[str]
) -> None:
    found, faults = _read(bounds=bounds)
    assert found.bounds == expected
    assert _paths(faults) == [f"{BOUNDS}: {path}" for path in paths]


@pytest.mark.parametrize(
    "bounds",
    [
        {"min": _amount(9, "9Gi")},
        {"max": _amount("500m", "1Gi")},
        {"min": _amount(0, "1Gi")},
        {"min": _amount(4, "4Gi"), "max": _amount(2, "8Gi")},
    ],
)
def test_bounds_that_contradict_each_other_do_not_count(bounds: dict[str, object]) -> None:
    found, faults = _read(bounds=bounds)
    assert found.bounds is None
    assert len(faults) == 1
    assert faults[0].startswith(f"{BOUNDS}: bounds: min")


@pytest.mark.parametrize(
    ("unit", "expected", "paths"),
    [
        ({"cpu": "250m", "memory": "2Gi"}, cu(0.25, 2), []),
        ({"cpu": 2}, cu(2, 1), []),
        ({"memory": "512Mi"}, cu(1, 0.5), []),
        ({"cpu": "x", "memory": "512Mi"}, cu(1, 0.5), ["cpu"]),
        ({"cpu": 0, "memory": None}, None, ["cpu"]),
        ({"disk": 1}, None, ["disk"]),
        ({}, None, []),
    ],
)
def test_a_step_that_is_wrong_or_left_out_stays(
    unit: dict[str, object], expected: Resources | None, paths: list[str]
) -> None:
    found, faults = _read(unit=unit)
    assert found.step == expected
    assert [fault.split(":")[1].strip() for fault in faults] == paths


@pytest.mark.parametrize(("word", "expected"), [(True, True), (False, False), (1, None), ("yes", None)])
def test_a_vm_says_whether_its_resources_are_tied(word: object, expected: bool | None) -> None:
    found, faults = _read(config={"tied": word})
    assert (found.is_tied, _paths(faults)) == (expected, [f"{CONFIG}: tied"] * (expected is None))
    found, faults = _read(NEON, config={"tied": word})
    assert (found.is_tied, bool(faults)) == (True, expected is not True)


@pytest.mark.parametrize(
    ("annotation", "source", "settings", "policy", "is_apart"),
    [
        (None, None, False, "utilisation", True),
        (None, None, True, "utilisation", False),
        (None, False, True, "utilisation", True),
        (None, True, False, "utilisation", False),
        (False, True, True, "utilisation", True),
        (True, False, False, "utilisation", False),
        (False, False, False, "load-average", False),
    ],
)
def test_the_nearest_word_decides_whether_a_vm_is_apart_unless_its_policy_ties_it(
    annotation: bool | None, source: bool | None, settings: bool, policy: str, is_apart: bool
) -> None:
    spec = VmDescription(VM, "http://127.0.0.1:1", is_tied=source)
    bounds = Bounds(cu(1, 2), cu(2, 4))
    own = Overrides(is_tied=annotation, step=cu(1, 2), bounds=bounds)
    found = vm_of(spec, own, build([policy], REGISTRY), is_tied=settings)
    assert found == replace(VM, unit=ComputeUnit(cu(1, 2), is_apart), bounds=bounds)


# ------------------------------------------------------------ the published names

PUBLISHED = {"min": {"cpu": 2, "mem": "2Gi"}, "max": {"cpu": "3500m", "mem": "16Gi"}}


def test_published_bounds_count_for_neonvm_objects_where_ours_say_nothing() -> None:
    assert _read(NEON, neon_bounds=PUBLISHED) == (
        dataclasses.replace(TIED, bounds=Bounds(cu(2), cu(3.5, 16))),
        [],
    )
    assert _read(BASE, neon_bounds=PUBLISHED) == (Overrides(), [])
    both, _ = _read(NEON, neon_bounds=PUBLISHED, bounds={"max": _amount(4, "4Gi")})
    assert both.bounds == Bounds(cu(1), cu(4))
    bad, faults = _read(NEON, neon_bounds=PUBLISHED, bounds={"max": 7})
    assert bad.bounds == Bounds(cu(2), cu(3.5, 16))
    assert len(faults) == 1


def test_bounds_and_steps_of_a_neonvm_stay_within_its_spec_and_are_whole_slots() -> None:
    narrow = dataclasses.replace(NEON, bounds=Bounds(cu(1), cu(3)))
    found, faults = _read(narrow, neon_bounds=PUBLISHED, unit={"memory": "1536Mi"})
    assert (found.bounds, found.step) == (Bounds(cu(2), cu(3)), None)
    assert [fault.partition(":")[0] for fault in faults] == ["bounds", UNIT]


@pytest.mark.parametrize(
    ("bounds", "path"),
    [
        ({"min": PUBLISHED["min"]}, "max"),
        ({**PUBLISHED, "min": {"cpu": 2}}, "min.mem"),
        ({**PUBLISHED, "min": {"cpu": 2, "mem": "1536Mi"}}, "min.mem"),
        ({**PUBLISHED, "min": {"cpu": 0, "mem": "1Gi"}}, "bounds"),
        ({**PUBLISHED, "min": {"cpu": 4, "mem": "1Gi"}}, "bounds"),
        ({**PUBLISHED, "mid": 1}, "mid"),
    ],
)
def test_published_bounds_count_as_a_whole(bounds: dict[str, object], path: str) -> None:
    found, faults = _read(NEON, neon_bounds=bounds)
    assert found.bounds is None
    assert _paths(faults) == [f"{NEON_BOUNDS}: {path}"]


def _utilisation(found: Overrides) -> Utilisation:
    assert found.policies is not None
    policy = dict(found.policies.policies)["utilisation"]
    assert isinstance(policy, Utilisation)
    return policy


def test_published_targets_set_those_of_utilisation() -> None:
    config = {
        "loadAverageFractionTarget": 0.8,
        "memoryUsageFractionTarget": 0.6,
        "cpuStableZoneRatio": 0.05,
        "cpuMixedZoneRatio": 0.1,
        "enableLFCMetrics": False,
    }
    found, faults = _read(NEON, neon_config=config)
    assert faults == []
    assert _utilisation(found) == Utilisation(800_000, 600_000, 800_000, cpu_zones=Zones(50_000, 100_000))
    assert _read(BASE, neon_config=config) == (Overrides(), [])


def test_each_published_value_counts_by_itself() -> None:
    config = {
        "loadAverageFractionTarget": 1.5,
        "memoryUsageFractionTarget": 1.5,
        "cpuStableZoneRatio": "x",
        "cpuMixedZoneRatio": 0.123456789,
        "enableLFCMetrics": True,
        "lfcToMemoryRatio": 0.75,
        "speed": 1,
    }
    found, faults = _read(NEON, neon_config=config)
    assert _utilisation(found) == Utilisation(
        1_000_000, load_target=1_500_000, cpu_zones=Zones(80_000, 123_457)
    )
    assert _paths(faults) == [
        f"{NEON_CONFIG}: {key}"
        for key in (
            "memoryUsageFractionTarget",
            "cpuStableZoneRatio",
            "enableLFCMetrics",
            "lfcToMemoryRatio",
            "speed",
        )
    ]


@pytest.mark.parametrize("value", [0, -1, 2.1, True, None, "0.9", [], {}, 1e308])
def test_a_published_target_out_of_range_does_not_count(value: object) -> None:
    found, faults = _read(NEON, neon_config={"loadAverageFractionTarget": value})
    assert (found.policies, _paths(faults)) == (None, [f"{NEON_CONFIG}: loadAverageFractionTarget"])


def test_published_targets_leave_the_other_configured_policies_and_args() -> None:
    chosen = ["pressure", {"name": "utilisation", "args": {"memoryMargin": 0, "cpuTarget": 0.5}}]
    config = {"memoryUsageFractionTarget": 0.5}
    found, faults = _read(dataclasses.replace(NEON, policies=chosen), neon_config=config)
    assert faults == []
    assert found.policies is not None
    assert [name for name, _ in found.policies.policies] == ["pressure", "utilisation"]
    assert _utilisation(found) == Utilisation(500_000, 500_000, memory_margin=0)
    found, faults = _read(dataclasses.replace(NEON, policies=["pressure"]), neon_config=config)
    assert found.policies is None
    assert faults == [f"{NEON_CONFIG}: has no effect, because the policy utilisation is not in use"]


def test_our_policies_win_over_published_targets() -> None:
    found, _ = _read(
        NEON, config={"policies": ["utilisation"]}, neon_config={"loadAverageFractionTarget": 0.5}
    )
    assert _utilisation(found) == Utilisation()


@pytest.mark.parametrize(
    ("name", "has_plugins", "found", "fault"),
    [
        ("load", True, "load", None),
        ("", False, "", None),
        ("load", False, None, f"{METRICS_PLUGIN}: needs plugins.directory in the agent's settings"),
        ("two words", True, None, f"{METRICS_PLUGIN}: must be 1 to 128 letters, digits"),
    ],
)
def test_a_vm_may_have_a_metrics_plugin_of_its_own(
    name: str, has_plugins: bool, found: str | None, fault: str | None
) -> None:
    own, faults = read({METRICS_PLUGIN: name}, BASE, standard((), has_plugins=has_plugins))
    assert own == Overrides(metrics_plugin=found)
    assert [each.startswith(str(fault)) for each in faults] == ([] if fault is None else [True])


@pytest.mark.parametrize(
    ("name", "text", "found", "fault"),
    [
        (YIELD, "to-minimum", Overrides(yields=YieldMode.TO_MINIMUM), None),
        (YIELD, "slak", Overrides(), f"{YIELD}: must be one of slack, to-minimum, never (found 'slak')"),
        (SUB_PRIORITY, "-2147483648", Overrides(priority=-(2**31)), None),
        (SUB_PRIORITY, "+7", Overrides(priority=7), None),
        (SUB_PRIORITY, "2147483648", Overrides(), f"{SUB_PRIORITY}: must be a whole number from -2147483648"),
        (SUB_PRIORITY, "1e3", Overrides(), f"{SUB_PRIORITY}: must be a whole number from -2147483648"),
    ],
)
def test_a_vm_says_what_it_gives_and_how_it_is_ranked(
    name: str, text: str, found: Overrides, fault: str | None
) -> None:
    own, faults = read({name: text}, BASE, REGISTRY)
    assert own == found
    assert [each.startswith(str(fault)) for each in faults] == ([] if fault is None else [True])


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (CONFIG, {"policies": ["pressure"]}, {"policies": ["presure"]}),
        (CONFIG, {"tied": True}, {"tied": True, "colour": "red"}),
        (NEON_CONFIG, {"memoryUsageFractionTarget": 0.5}, {"memoryUsageFractionTarget": 5}),
        (SUB_PRIORITY, 5, "five"),
    ],
)
def test_what_the_agent_alone_reads_keeps_its_last_valid_value(name: str, good: Any, bad: Any) -> None:
    known = checks(REGISTRY, ("utilisation",))
    before = settle({name: json.dumps(good)}, known, None)
    after = settle({name: json.dumps(bad)}, known, before.valid)
    assert (after.annotations, after.valid, bool(after.faults)) == (before.annotations, before.valid, True)
    assert settle({name: json.dumps(bad)}, known, None).unknown == (name,)


@pytest.mark.parametrize("key", ["enableLFCMetrics", "ofALaterRelease"])
def test_published_settings_that_are_not_known_here_are_no_reason_to_stand_still(key: str) -> None:
    found = settle({NEON_CONFIG: json.dumps({key: True})}, checks(REGISTRY, ("utilisation",)), None)
    assert (found.unknown, found.faults) == ((), ())
