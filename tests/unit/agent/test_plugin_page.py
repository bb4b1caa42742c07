"""The metrics of plugins."""

from collections import Counter

from agent.daemon.node_plugins import families
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.ports import PluginStatus
from protocol.pages import PluginCallCounts


def test_each_call_is_counted_under_one_result() -> None:
    figures = PluginCallCounts(made=10, failed=4, timed_out=3, in_flight=1, turned_away=2)
    status = PluginStatus("/p.sock", PluginState.REGISTERED, 1.0, "Policy", "p", figures=figures)
    calls = list(families([status], Counter()))[-1]
    results = {labels[-1]: count for labels, count in calls.samples}
    assert results == {"answered": 5, "failed": 1, "timed-out": 3, "turned-away": 2}
