"""Policies by name: args with every fault at once, entry points, and policies that are not ours."""

import math
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from agent.core.policies.combined import Combined
from agent.core.policies.peaks import LoadTail, Surges
from agent.core.policies.remembered import Zones
from agent.core.policies.stepwise import LoadAverage, Pressure
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import (
    MAX_TEXT,
    MAX_UNITS,
    Goal,
    GoalPart,
    Load,
    Policy,
    ResourceGoal,
    Sizing,
)
from agent.daemon.policies import POLICY_GROUP, Guarded, build, faults_of, standard
from hosting.registry import RegistryError
from hosting.settings import FaultsError
from protocol.values import Bounds, ComputeUnit
from tests.support.amounts import UNIT, cu

SIZING = Sizing(cu(4), ComputeUnit(UNIT, is_apart=True), Bounds(UNIT, UNIT * 8))
FINE = ResourceGoal(2, "fine")
OURS = standard(())


class Outside:
    """A policy from elsewhere, which does what it was made with."""

    def __init__(self, found: Any = None, error: Exception | None = None) -> None:
        self.found = found
        self.error = error

    def goal(self, load: Load, sizing: Sizing) -> Any:
        """Whatever that is."""
        assert sizing.units().cpu > 0
        assert load == Load()
        if self.error is not None:
            raise self.error
        return self.found


def factory(args: Mapping[str, Any]) -> Policy:
    """For entry points: a policy with a goal of `units`."""
    return Outside(Goal(ResourceGoal(args["units"], "outside"), FINE))


def test_args_are_shares_as_they_are_written() -> None:
    args = {
        "cpuTarget": 0.6,
        "memoryTarget": 1,
        "loadTarget": 1.5,
        "memoryMargin": "64Mi",
        "cpuStableZone": 0.000001,
        "cpuMixedZone": 0,
        "memoryStableZone": 0.3,
        "memoryMixedZone": 0.1,
        "window": 120,
        "tailWindow": 600,
        "tailShare": 0.9,
        "tailTarget": 1,
        "surgeWindow": 3600,
        "surgeAhead": 3.5,
        "slopeAhead": 0,
        "wishShare": 0.25,
    }
    (pair,) = build([{"name": "utilisation", "args": args}], OURS).policies
    expected = Utilisation(
        600_000,
        1_000_000,
        1_500_000,
        64 * 2**20,
        Zones(1, 0),
        Zones(300_000, 100_000),
        120.0,
        LoadTail(600.0, 900_000, 1_000_000),
        Surges(3600.0, 3.5),
        0.0,
        250_000,
    )
    assert pair == ("utilisation", expected)
    (pair,) = build([{"name": "load-average", "args": {"high": 2, "low": 1}}], OURS).policies
    assert pair[1] == LoadAverage(2.0, 1.0)
    (pair,) = build([{"name": "pressure", "args": {"cpuSome": 20, "step": 0.5}}], OURS).policies
    assert pair[1] == Pressure(cpu_some=20.0, step=500_000)


def test_every_fault_is_named_with_its_path() -> None:
    data = [
        {
            "name": "utilisation",
            "args": {"cpuTarget": 0, "memoryTarget": "x", "speed": 1, "window": math.nan},
        },
        {"name": "load-average", "args": {"low": 0.5}},
        {"name": "pressure", "args": {"cpuSome": 101, "step": 0.0000001}},
        "nope",
        {"name": "utilisation"},
        {"args": {}},
        7,
        {"name": "load-average", "args": []},
    ]
    with pytest.raises(FaultsError) as caught:
        build(data, OURS)
    paths = sorted(fault.partition(": ")[0] for fault in caught.value.faults)
    assert paths == [
        "policies[0].args.cpuTarget",
        "policies[0].args.memoryTarget",
        "policies[0].args.speed",
        "policies[0].args.window",
        "policies[1].args.low",
        "policies[2].args.cpuSome",
        "policies[2].args.step",
        "policies[3]",
        "policies[4].name",
        "policies[5].name",
        "policies[6]",
        "policies[7].args",
    ]
    assert faults_of(data, OURS) == caught.value.faults


@pytest.mark.parametrize("data", [None, [], {}, "utilisation", 7, ["utilisation"] * 17])
def test_a_list_is_needed_in_which_each_name_comes_once(data: object) -> None:
    (fault,) = faults_of(data, OURS, "here")
    assert fault.startswith("here: ")
    assert faults_of(["pressure"] * 2, OURS) == ["policies[1].name: 'pressure' is used more than once"]


@pytest.mark.parametrize("value", [True, math.inf, -0.1, 1.1, 1e300, None, 0.1234567])
def test_what_is_no_share_is_refused(value: object) -> None:
    data = [{"name": "utilisation", "args": {"cpuTarget": value}}]
    assert [fault.partition(": ")[0] for fault in faults_of(data, OURS)] == ["policies[0].args.cpuTarget"]


# ------------------------------------------------------------ policies that are not ours


def test_an_entry_point_is_a_policy_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda _: factory)
    registry = standard([EntryPoint("mine", f"{__name__}:factory", POLICY_GROUP)])
    assert registry.names() == ("load-average", "mine", "pressure", "utilisation")
    found = build(["utilisation", {"name": "mine", "args": {"units": 6}}], registry)
    goal = found.goal(Load(), SIZING)
    assert goal.cpu.parts[0] == GoalPart("mine", 6, "outside")
    assert goal.memory.parts[0] == GoalPart("mine", 2, "fine")
    assert faults_of(["mine"], registry) == ["policies[0]: policy 'mine': 'units'"]
    with pytest.raises(RegistryError, match="registered already"):
        standard([EntryPoint("utilisation", f"{__name__}:factory", POLICY_GROUP)])


@pytest.mark.parametrize("name", ["", "Upper", "-x", "a b", "x" * 64])
def test_a_name_that_no_settings_file_should_hold_is_refused(name: str) -> None:
    with pytest.raises(RegistryError):
        standard(()).register(name, factory)


@pytest.mark.parametrize("made", [None, Outside, 7, object()])
def test_a_factory_must_make_a_policy(made: Any) -> None:
    registry = standard(())
    registry.register("odd", lambda args: made)  # noqa: ARG005 - whatever the args are
    (fault,) = faults_of(["odd"], registry)
    assert "made no policy" in fault


def test_faults_of_outside_args_keep_their_paths() -> None:
    def strict(args: Mapping[str, Any]) -> Policy:
        raise FaultsError([f"units: must be set (found {dict(args)})"])

    registry = standard(())
    registry.register("strict", strict)
    assert faults_of(["strict"], registry) == ["policies[0].args.units: must be set (found {})"]


@pytest.mark.parametrize(
    "found",
    [None, 5, "x" * 10_000, *(ResourceGoal(units, "") for units in (-1, True, 1.5, math.nan))],  # type: ignore[arg-type]  # that is the point
)
def test_what_is_no_goal_does_not_count(found: Any) -> None:
    result = Guarded("odd", Outside(found)).goal(Load(), SIZING)
    assert (result.cpu.units, result.memory.units) == (None, None)
    assert len(result.cpu.reason) < 2 * MAX_TEXT
    result = Guarded("odd", Outside(Goal(FINE, found))).goal(Load(), SIZING)
    assert (result.cpu, result.memory.units) == (FINE, None), "each resource is judged by itself"
    assert len(result.memory.reason) < 2 * MAX_TEXT


def test_what_an_outside_policy_says_or_raises_is_kept_within_reason() -> None:
    large, unknown = ResourceGoal(10**30, "line\n" * 500), ResourceGoal(None, "no\nidea")
    result = Guarded("odd", Outside(Goal(large, unknown))).goal(Load(), SIZING)
    assert (result.cpu.units, result.cpu.reason[:9], len(result.cpu.reason)) == (
        MAX_UNITS,
        "line line",
        MAX_TEXT,
    )
    assert result.memory == ResourceGoal(None, "no idea")
    failed = Guarded("odd", Outside(error=KeyError("cpu"))).goal(Load(), SIZING)
    assert failed.cpu == failed.memory == ResourceGoal(None, "policy odd failed: 'cpu'")


@pytest.mark.parametrize(("word", "is_tied"), [(True, True), (False, False), ("yes", False), (None, False)])
def test_an_outside_policy_may_know_one_number_only(word: object, is_tied: bool) -> None:
    outside = Outside()
    outside.is_tied = word  # type: ignore[attr-defined]  # as a policy of another distribution may have it
    assert Combined((("odd", Guarded("odd", outside)),)).is_tied is is_tied
    assert build(["utilisation", "pressure"], OURS).is_tied is False
    assert build(["utilisation", "load-average"], OURS).is_tied is True


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ((GoalPart("a", 3, "x"), GoalPart("b", 2, "y"), GoalPart("c", None, "z")), True),
        ((GoalPart("a", 2, "x"),), False),
        ((GoalPart("a", 3, "x"), GoalPart("b", 4, "y")), False),
        (("a",), False),
        (7, False),
    ],
)
def test_parts_are_kept_where_they_explain_the_goal(parts: Any, kept: bool) -> None:
    result = Guarded("odd", Outside(Goal(ResourceGoal(3, "x", parts), FINE))).goal(Load(), SIZING)
    assert result == Goal(ResourceGoal(3, "x", parts if kept else ()), FINE)
