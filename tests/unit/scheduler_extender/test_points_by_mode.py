"""docs/guides/scheduling-plugins.md says which points are called in which mode: here each mode runs a plugin that has all of them."""

import asyncio
from typing import Any

import pytest

from scheduler.placing.core.objects import QueuedPod
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.core.values import ExtensionPoint
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import SharedHooks
from scheduler.placing.plugins.ledger_fit import DefaultBinder, LedgerFit
from scheduler.placing.plugins.registry import Registry
from tests.support.virtual_time import virtually
from tests.tidy.repository import ROOT
from tests.unit.scheduler_extender.extender_worlds import World, pod
from tests.unit.scheduler_framework.extender_worlds import DEFAULTS, NATIVE, Told
from tests.unit.scheduler_framework.test_pod_scheduler import SchedulerWorld, running
from tests.unit.scheduler_framework.test_pod_scheduler import pod as own_pod

VERBS = ("filter", "prioritize", "bind")


def rows() -> dict[str, tuple[str, str]]:
    page = (ROOT / "docs/guides/scheduling-plugins.md").read_text()
    _, _, rest = page.partition("| Point | Full mode | Beside kube-scheduler |\n|---|---|---|\n")
    lines = [line for line in rest.partition("\n\n")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {point.strip("`"): (full, beside) for point, full, beside in cells}


class AllPoints(World):
    """The extender over a plugin with the method of every point, whose calls are noted."""

    def _framework(self, name: str, shared: SharedHooks) -> SchedulingFramework:
        answers = {method: DEFAULTS.get(method) for method in NATIVE if method != "bind"}
        registry = Registry()
        registry.register("All", lambda *_: Told("All", answers).made(self.called))
        registry.register("Sort", lambda *_: _Sort(self.called))
        for plugin in (LedgerFit, DefaultBinder):
            registry.register(plugin.__name__, plugin)
        enabled = tuple(EnabledPlugin(each) for each in ("Sort", "All", "LedgerFit", "DefaultBinder"))
        return SchedulingFramework(
            of_profile(Profile(name, multi_point=PluginSet(enabled)), registry), shared
        )

    def points(self) -> set[str]:
        """The points of the calls since the last look."""
        methods = {call.partition(".")[2].partition(":")[0] for call in self.called}
        self.called.clear()
        by_method = {**NATIVE, "less": ExtensionPoint.QUEUE_SORT}
        return {str(by_method[method]) for method in methods}


class _Sort:
    def __init__(self, called: list[str]) -> None:
        self._called = called

    def name(self) -> str:
        return "Sort"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        self._called.append("Sort.less")
        return first.since_s < second.since_s


@virtually
async def test_beside_kube_scheduler_points_are_called_as_the_page_says() -> None:
    world = AllPoints()
    made = world.create("p")
    called: dict[str, set[str]] = {}
    await world.filter(made, "a", "b")
    called["filter"] = world.points()
    await world.prioritize(made, "a", "b")
    called["prioritize"] = world.points()
    assert await world.bind(made, "a") == ""
    called["bind"] = world.points() | {"bind"}  # the binder's own, which did bind
    assert world.api.sent == [("p", "a")]
    too_large = pod("q", 99)
    await world.filter(too_large, "a", "b")
    called["filter"] |= world.points()
    found = {
        str(point): ", ".join(verb for verb in VERBS if str(point) in called[verb]) or "not called"
        for point in ExtensionPoint
    }
    assert found == {point: beside for point, (_, beside) in rows().items()}


@virtually
async def test_in_full_mode_all_are_called() -> None:
    assert {full for full, _ in rows().values()} == {"yes"}
    answers: dict[str, Any] = {method: DEFAULTS.get(method) for method in NATIVE}
    world = SchedulerWorld(Told("All", answers))
    async with running(world, own_pod("a"), own_pod("b")):
        await asyncio.sleep(1)
        answers["filter"] = DEFAULTS["post_filter"][1]
        world.scheduler.pod_seen(own_pod("c"))
        await asyncio.sleep(1)
    methods = {call.partition(".")[2].partition(":")[0] for call in world.calls}
    missing = {str(point) for method, point in NATIVE.items() if method not in methods}
    assert missing == set()


@pytest.mark.parametrize("point", ExtensionPoint)
def test_every_point_has_its_row(point: ExtensionPoint) -> None:
    assert str(point) in rows()
