"""docs/guides/scheduling-plugins.md: its tables have every name of the seeds, every name of ours in them can be imported, its example runs."""

import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
import yaml

from hosting import logs
from hosting.server import Reply, Request
from hosting.settings import check
from parley import scheduling
from protocol.wire import PodName
from scheduler.permits.service.config_file import Config
from scheduler.placing.core.diagnosis import SCHEDULING_TIMEOUT_S
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.values import Code, code_of
from scheduler.placing.cycle.assembly import build_frameworks, of_profile
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.pages import MOST_BYTES
from scheduler.placing.plugins.registry import EXTENDER_PROFILE, PLUGIN_GROUP, new_registry
from tests.tidy.repository import ROOT

PAGE: Final = (ROOT / "docs/guides/scheduling-plugins.md").read_text()
SEED_001: Final = """
    NotFound Code Success Error Unschedulable Wait ContextData ContextKey
    Framework Framework.RunPrebindPlugins Framework.RunReservePlugins Framework.RunUnreservePlugins Framework.RunPermitPlugins
    FrameworkHandle FrameworkHandle.NodeInfoSnapshot FrameworkHandle.IterateOverWaitingPods FrameworkHandle.GetWaitingPod
    PermitPlugin PermitPlugin.Permit Plugin Plugin.Name
    PluginContext NewPluginContext PluginContext.Delete PluginContext.Lock PluginContext.RLock PluginContext.RUnlock
    PluginContext.Read PluginContext.Unlock PluginContext.Write PluginFactory
    PrebindPlugin PrebindPlugin.Prebind Registry NewRegistry Registry.Register Registry.Unregister
    ReservePlugin ReservePlugin.Reserve Status Status.AsError UnreservePlugin UnreservePlugin.Unreserve
    WaitingPod WaitingPod.GetPod WaitingPod.Allow WaitingPod.Reject
"""


SEED_002: Final = """
    FrameworkExtender ExtendedHandle Scheduler KoordinatorClientSet GetReservationNominator RegisterErrorHandlerFilters
    RegisterForgetPodHandler RunReservationFilterPlugins RunReservationScorePlugins PluginToReservationScores
    RunReservationRestoreReservation SchedulingTransformer Name PreFilterTransformer BeforePreFilter AfterPreFilter
    FilterTransformer BeforeFilter ScoreTransformer BeforeScore PreEnqueuePlugin PreFilterPlugin PreFilter FilterPlugin Filter
    ScorePlugin Score ReservePlugin Reserve PreBindPlugin PreBind PostBindPlugin PostBind
    ReservationFilterPlugin FilterReservation ReservationScorePlugin ScoreReservation
    ReservationRestorePlugin PreRestoreReservation RestoreReservation ReservationNominator New PluginName koordinatorPlugins
"""
"""The scheduler's half of the page; `Plugin` and `PluginFactory` are those of seed 001."""
SEEDS: Final = {"Seed 001": SEED_001, "Seed 002": SEED_002}


def rows(header: str) -> list[list[str]]:
    """The rows of a table, as the names in their first two cells."""
    text = PAGE.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    cells = [line.strip("|").split("|")[:2] for line in text.splitlines()[2:]]
    return [re.findall(r"`([^`]+)`", cell) for row in cells for cell in row]


def exists(name: str) -> bool:
    """Whether `parley.scheduling` has the name, which may be a member of a class there."""
    owner, _, member = name.partition(".")
    found = getattr(scheduling, owner, None)
    return found is not None and (not member or (inspect.isclass(found) and hasattr(found, member)))


def block(first_line: str) -> str:
    found = re.search(rf"^```\w+\n({re.escape(first_line)}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, first_line
    return found[1]


@pytest.mark.parametrize("header", SEEDS)
def test_every_name_of_the_seed_is_in_the_table_and_nothing_else(header: str) -> None:
    assert sorted(name for names in rows(header)[::2] for name in names) == sorted(SEEDS[header].split())


@pytest.mark.parametrize("header", SEEDS)
def test_every_name_of_ours_in_the_table_can_be_imported(header: str) -> None:
    ours = rows(header)[1::2]
    assert all(ours), "each row has one"
    assert [name for names in ours for name in names if not exists(name)] == []


def test_the_look_up_knows_what_is_not_there() -> None:
    assert not exists("PluginContexts")
    assert not exists("PluginContext.reads")


@pytest.fixture
def example() -> Iterator[types.ModuleType]:
    """The plugin of the page, as the module `licensed_nodes`."""
    module = types.ModuleType("licensed_nodes")
    sys.modules[module.__name__] = module
    exec(block("# licensed_nodes.py"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


@pytest.mark.usefixtures("example")
def test_the_test_of_the_example_passes() -> None:
    space: dict[str, Any] = {}
    exec(block("# test_licensed_nodes.py"), space)
    tests = [found for name, found in space.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


async def test_the_example_runs_as_it_is_configured(example: types.ModuleType) -> None:
    """Over the default plugins, and its page shows what it knows."""
    registry = new_registry()
    entry = re.search(
        r'^LicensedNodes = "(.*)"$', block('[project.entry-points."parley.scheduling_plugins"]'), re.MULTILINE
    )
    assert entry is not None
    registry.register("LicensedNodes", getattr(example, entry[1].partition(":")[2]))
    (profile,) = check(yaml.safe_load(block("scheduling:")), Config).scheduling.all_profiles()
    ports = ExtenderPorts(cast("Any", None), cast("Any", None), lambda: 0.0)
    shared = SharedHooks(ports, logs.logger("test"))
    frameworks = build_frameworks(
        [profile],
        registry,
        lambda each: SchedulingFramework(of_profile(each, registry, EXTENDER_PROFILE), shared),
        EXTENDER_PROFILE,
    )
    extender = frameworks["parley-scheduler"]
    assert extender.profile.weights["LicensedNodes"] == 3
    nodes = [
        NodeInfo(name, manifest={"metadata": {"labels": labels}})
        for name, labels in (("a", {"licence": "x"}), ("b", {}))
    ]
    extender.set_snapshot(NodeSnapshot({each.name: each for each in nodes}))
    pod, context = PodInfo(PodName("p", "default"), "u", labels={"licence": "x"}), CycleState()
    assert (await extender.run_pre_filter_plugins(context, pod, nodes))[1] is None
    statuses = [await extender.run_filter_plugins(context, pod, each) for each in nodes]
    assert [code_of(status) for status in statuses] == [Code.SUCCESS, Code.UNSCHEDULABLE_AND_UNRESOLVABLE]
    (page,) = [
        route
        for route in shared.routes(dict)
        if route.path.startswith("/v1/scheduling/plugins/LicensedNodes")
    ]
    reply = await page.answer(Request("GET", page.path))
    assert isinstance(reply, Reply)
    assert json.loads(reply.body) == {"a": "x", "b": None}


def test_the_code_imports_nothing_else_of_parley() -> None:
    pattern = r"^(?:from|import) ((?:parley|scheduler|hosting|protocol)\b\S*)"
    found = {
        name
        for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        for name in re.findall(pattern, text, re.MULTILINE)
    }
    assert found == {"parley.scheduling", "parley.testing"}


def test_the_figures_are_those_of_the_code() -> None:
    prose = " ".join(PAGE.split())
    for sentence in (
        f"cycles that take longer than {SCHEDULING_TIMEOUT_S:g} s",
        f"up to {MOST_BYTES // 2**20} MiB",
        f"entry-point group `{PLUGIN_GROUP}`",
    ):
        assert sentence in prose, sentence
