"""The example of a QoS strategy, as its distribution offers it: with a real manager, metric cache and executor over plain files."""

import asyncio
import contextlib
import random
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from agent.node.qos.client import StrategyPorts
from agent.node.qos.config import QOS_PLUGIN_GROUP, ExtensionRegistry, configured, standard
from agent.node.qos.core.metrics import PSI, MetricSample
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.manager import QosManager
from agent.node.qos.metric_cache import TimeSeriesCache
from tests.support.waiting import until
from tests.unit.agent_qos.group_trees import GroupTree
from tests.unit.agent_qos.strategies import LOG, states

EXAMPLE = Path(__file__).parents[3] / "examples/qos-strategy"
GROUP = "kubepods/besteffort"
WAITING = {"psi_resource": "cpu", "psi_precision": "avg10", "psi_degree": "some"}


def entries() -> list[metadata.EntryPoint]:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    found = project["entry-points"][QOS_PLUGIN_GROUP]
    return [metadata.EntryPoint(name, value, QOS_PLUGIN_GROUP) for name, value in found.items()]


async def test_the_example_holds_best_effort_back_under_pressure_and_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    tree = GroupTree(tmp_path)
    tree.make(GROUP)
    cache = TimeSeriesCache(clock=time.monotonic)
    config = configured(
        {"CalmShares": True},
        {"CalmShares": {"interval": 0.002}},
        registry=standard(ExtensionRegistry(), entries()),
    )
    manager = QosManager(
        config, cache, states(), StrategyPorts(ResourceExecutor(tmp_path)), LOG, random.Random(0)
    )

    def reasons() -> list[str]:
        status = next(each for each in manager.statuses() if each.name == "CalmShares")
        return [record.reason for record in status.decisions]

    running = asyncio.create_task(manager.run())
    await until(lambda: reasons() == ["no-metric"], beside=running)
    for percent, shares in ((50.0, "2"), (0.0, "1024"), (99.0, "2")):
        cache.append([MetricSample(PSI, time.monotonic(), percent, WAITING)])
        await until(lambda expected=shares: tree.text(GROUP, "cpu.shares") == expected, beside=running)  # type: ignore[misc]  # a default binds the value
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert tree.text(GROUP, "cpu.shares") == "1024"
