"""What the agent shows of its node plugins: `/v1/plugins`, and the metric families. Loads no gRPC."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from agent.daemon.server import GUARDED
from agent.node.plugins.core.plugin_state import PluginState
from agent.node.plugins.ports import PluginStatus
from hosting.metrics import Family
from hosting.problems import DocumentedAnswer, Operation
from protocol.agent_pages import NodePluginShown, NodePluginsShown, PluginCallCounts
from protocol.texts import clean

MAX_LISTED: Final = 1000
"""Sockets that are shown one by one: all that a node has, unless something has gone wrong with its folder."""
_IDLE: Final = frozenset({PluginState.DISCOVERED, PluginState.CONNECTING, PluginState.FAILED})


PAGE: Final = Operation(
    "The node plugins", {200: DocumentedAnswer("The plugins.", NodePluginsShown)}, "node", shared=GUARDED
)


def document(node: str, directory: str | None, statuses: Sequence[PluginStatus]) -> bytes:
    """The whole of `/v1/plugins`. `directory` is None where the settings name none.

    Of very many sockets those that are in use come first, and then by path; of the others only the number in each state is told.
    """
    ordered = sorted(statuses, key=lambda each: (each.state in _IDLE, each.socket_path))
    plugins = tuple(_plugin(each) for each in ordered[:MAX_LISTED])
    more = Counter(each.state.value for each in ordered[MAX_LISTED:])
    return msgspec.json.encode(NodePluginsShown(node=node, directory=directory, plugins=plugins, more=more))


def _plugin(status: PluginStatus) -> NodePluginShown:
    figures = status.figures
    return NodePluginShown(
        type=status.plugin_type or None,
        name=status.name or None,
        state=status.state.value,
        since_seconds=round(status.since_s, 1),
        socket=clean(status.socket_path),
        endpoint=clean(status.endpoint) or None,
        versions=tuple(status.versions),
        last_error=status.last_error or None,
        retry_in_seconds=None if status.retry_in_s is None else round(status.retry_in_s, 1),
        calls=PluginCallCounts(
            made=figures.calls,
            failed=figures.failures,
            timed_out=figures.timeouts,
            turned_away=figures.turned_away,
            in_flight=figures.in_flight,
            last_error=figures.last_error or None,
        ),
    )


def families(statuses: Sequence[PluginStatus], changes: Counter[tuple[str, str]]) -> Iterator[Family]:
    """The metrics of plugins. `changes` counts registrations by the plugin's type and what became of them."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in statuses:
        counts[each.plugin_type, each.state.value] += 1
    types = sorted({each.plugin_type for each in statuses})
    yield Family(
        "gauge",
        "parley_agent_plugins",
        "Sockets of plugins by the plugin's type (empty before it is known) and state",
        ("type", "state"),
        tuple(
            ((kind, state.value), float(counts[kind, state.value])) for kind in types for state in PluginState
        ),
    )
    yield Family(
        "counter",
        "parley_agent_plugin_registrations",
        "Registrations of plugins by type and result",
        ("type", "result"),
        tuple((labels, float(count)) for labels, count in sorted(changes.items())),
    )
    yield Family(
        "counter",
        "parley_agent_plugin_calls",
        "Calls to plugins since their registration, by result",
        ("type", "name", "result"),
        tuple(_calls(statuses)),
    )


def _calls(statuses: Sequence[PluginStatus]) -> Iterator[tuple[tuple[str, ...], float]]:
    for each in statuses:
        if each.state is not PluginState.REGISTERED:
            continue
        figures = each.figures
        done = figures.calls - figures.failures - figures.in_flight
        for result, count in (
            ("answered", max(done, 0)),
            ("failed", figures.failures - figures.timeouts),
            ("timed-out", figures.timeouts),
            ("turned-away", figures.turned_away),
        ):
            yield (each.plugin_type, each.name, result), float(count)
