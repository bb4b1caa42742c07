"""Which changes of plugins are told, and counted."""

import pytest

from agent.daemon.node_plugins import PluginEvents
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.ports import PluginStatus

S = PluginState


def status(
    state: PluginState, error: str = "", *, path: str = "/p/a.sock", name: str = "load"
) -> PluginStatus:
    return PluginStatus(path, state, 0.0, "MetricsSource", name, path, ("v1",), error)


@pytest.mark.parametrize(
    ("changes", "told", "counts"),
    [
        (
            [status(S.CONNECTING), status(S.REGISTERED), status(S.DEREGISTERING), status(S.DISCOVERED)],
            [
                "PluginRegistered: MetricsSource plugin load (v1) at /p/a.sock",
                "!PluginLost: MetricsSource plugin load at /p/a.sock: its socket is gone; its VMs go on with what is built in",
            ],
            {"registered": 1, "lost": 1},
        ),
        (
            [status(S.FAILED, "no answer"), status(S.CONNECTING), status(S.FAILED, "no answer")],
            ["!PluginFailed: MetricsSource plugin load at /p/a.sock: no answer"],
            {"failed": 2},
        ),
        (
            [status(S.REGISTERED), status(S.REGISTERED, path="/p/b.sock"), status(S.SUPERSEDED), status(S.DISCOVERED)],
            [
                "PluginRegistered: MetricsSource plugin load (v1) at /p/a.sock",
                "PluginRegistered: MetricsSource plugin load (v1) at /p/b.sock",
            ],
            {"registered": 2},
        ),
        (
            [status(S.FAILED, "connection refused", name="")],
            ["!PluginFailed: plugin at /p/a.sock: connection refused"],
            {"failed": 1},
        ),
    ],
    ids=["registered and lost", "failed", "superseded", "not known"],
)  # fmt: skip
def test_what_is_told_of_plugins(
    changes: list[PluginStatus], told: list[str], counts: dict[str, int]
) -> None:
    found: list[str] = []
    events = PluginEvents(
        lambda is_warning, reason, _action, text: found.append(f"{'!' if is_warning else ''}{reason}: {text}")
    )
    for change in changes:
        events.changed(change)
    assert found == told
    assert {result: count for (_, result), count in events.counts.items()} == counts


def test_thousands_of_sockets_with_one_fault_are_told_as_a_number() -> None:
    found: list[str] = []
    events = PluginEvents(lambda _warning, _reason, _action, text: found.append(text))
    for _ in range(3):
        for number in range(5000):
            events.changed(status(S.FAILED, "nobody answers", path=f"/p/{number}", name=""))
    assert found[0] == "plugin at /p/0: nobody answers"
    assert found[10:] == [
        "plugin at /p/99 and 99 more: nobody answers",
        "plugin at /p/999 and 999 more: nobody answers",
    ]
