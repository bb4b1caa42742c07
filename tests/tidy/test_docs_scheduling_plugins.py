"""docs/scheduling-plugins.md: its table of the names of seed 001 has every one of them, and every name of ours in it exists."""

import importlib
import inspect
import re
from typing import Final

from tests.tidy.repository import ROOT

PAGE: Final = (ROOT / "docs/scheduling-plugins.md").read_text()
MODULES: Final = tuple(
    importlib.import_module(f"scheduler.framework.{name}")
    for name in (
        "core.objects",
        "core.plugin",
        "core.status",
        "runtime.context",
        "runtime.early_assembly",
        "runtime.framework",
        "runtime.registry",
    )
)
"""Where the names of the table are."""
SEED: Final = """
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


def rows() -> list[list[str]]:
    """The rows of the table, as the names in their first two cells."""
    text = PAGE.split("| Seed 001 |", 1)[1].split("\n\n", 1)[0]
    cells = [line.strip("|").split("|")[:2] for line in text.splitlines()[2:]]
    return [re.findall(r"`([^`]+)`", cell) for row in cells for cell in row]


def exists(name: str) -> bool:
    """Whether one of the modules has the name, which may be a method of a class there."""
    owner, _, member = name.partition(".")
    found = [getattr(module, owner) for module in MODULES if hasattr(module, owner)]
    return any(not member or (inspect.isclass(each) and hasattr(each, member)) for each in found)


def test_every_name_of_the_seed_is_in_the_table_and_nothing_else() -> None:
    assert sorted(name for names in rows()[::2] for name in names) == sorted(SEED.split())


def test_every_name_of_ours_in_the_table_exists() -> None:
    ours = rows()[1::2]
    assert all(ours), "each row has one"
    assert [name for names in ours for name in names if not exists(name)] == []


def test_the_look_up_knows_what_is_not_there() -> None:
    assert not exists("PluginContexts")
    assert not exists("PluginContext.reads")
