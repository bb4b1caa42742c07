"""The table of sockets beyond what is recorded: how long a path waits after failures, which socket of a name comes back, what ends first."""

import random

import pytest

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.plugin_info import PluginState as S
from agent.node.plugins.core.plugin_info import RegistrationEvent as E
from agent.node.plugins.core.sockets import (
    JITTER,
    RETRY,
    PluginSocket,
    Refusal,
    RegisterPlugin,
    SocketTable,
    UnregisterPlugin,
)

PATH = "/p/a.sock"


def tried(table: SocketTable, uuid: str, now_s: float) -> Refusal | None:
    """Begin an operation about the socket of that UUID."""
    return table.begin(PluginInfo(PATH, uuid=uuid), now_s)


def failed(table: SocketTable, times: int, chance: float = 0.0) -> float:
    """A socket U1 is there, and its operation fails so often, each time as early as allowed. Returns the time after that."""
    now_s = 0.0
    table.made(PluginInfo(PATH, uuid="U1"))
    for _ in range(times):
        now_s += (retry_in_s(table, now_s) or 0.0) + 0.001
        assert tried(table, "U1", now_s) is None
        table.ended(table.at(PATH), "no", chance, now_s)
    return now_s


def retry_in_s(table: SocketTable, now_s: float) -> float | None:
    socket = table.get(PATH)
    return None if socket is None else socket.retry_in_s(now_s)


def test_a_socket_that_was_created_anew_waits_the_first_step_at_most() -> None:
    table = SocketTable()
    now_s = failed(table, 9)
    assert tried(table, "U1", now_s + 100.0) is Refusal.BACKING_OFF
    table.made(PluginInfo(PATH, uuid="U2"))
    assert retry_in_s(table, now_s) == pytest.approx(0.5)
    assert tried(table, "U2", now_s + 0.49) is Refusal.BACKING_OFF
    assert tried(table, "U2", now_s + 0.51) is None
    table.ended(table.at(PATH), "no", 0.5, now_s + 0.51)
    again_s = retry_in_s(table, now_s + 0.51)
    assert again_s is not None
    assert 0.5 <= again_s <= 0.5 * (1 + JITTER)


def test_chance_adds_a_tenth_at_most_and_spreads_the_waits() -> None:
    waits = set()
    for seed in range(20):
        table = SocketTable()
        waits.add(retry_in_s(table, failed(table, 12, random.Random(seed).random())))
    assert len(waits) == 20
    assert all(wait and RETRY.cap_s <= wait <= RETRY.cap_s * (1 + JITTER) for wait in waits)


def test_a_path_that_is_gone_is_forgotten_once_its_wait_is_over() -> None:
    table = SocketTable()
    now_s = failed(table, 3)
    table.begin_pass(now_s + 3.0)
    assert retry_in_s(table, now_s + 3.0) == 0.0
    table.gone(PATH)
    table.begin_pass(now_s + 1.0)
    assert retry_in_s(table, now_s + 1.0) == 1.0
    table.begin_pass(now_s + 3.0)
    assert table.all() == []


def test_a_path_at_work_is_never_forgotten() -> None:
    table = SocketTable()
    assert tried(table, "U1", 0.0) is None
    table.begin_pass(1000.0)
    assert tried(table, "U2", 1000.0) is Refusal.ALREADY_EXECUTING


def registered(table: SocketTable, path: str, uuid: str) -> PluginSocket:
    """The plugin `gpu` registers at a socket that was just created. Returns the socket's record."""
    info = PluginInfo(path, uuid=uuid)
    table.made(info)
    table.begin_pass(0.0)
    assert table.begin(info, 0.0) is None
    table.dialled(info, 0.0)
    table.described(info, ("DevicePlugin", "gpu"), ("v1",))
    for event in (E.IDENTIFIED, E.VALIDATED):
        table.moved(table.at(path), event, "", 0.0)
    table.added(info)
    for event in (E.TAKEN, E.ACKNOWLEDGED):
        table.moved(table.at(path), event, "", 0.0)
    table.ended(table.at(path), None, 0.0, 0.0)
    return table.at(path)


def test_the_newest_socket_that_is_left_comes_back_when_a_newer_one_ends() -> None:
    table = SocketTable()
    oldest, older, newest = (registered(table, f"/p/{each}.sock", each) for each in "abc")
    assert [each.state for each in (oldest, older, newest)] == [S.SUPERSEDED, S.SUPERSEDED, S.REGISTERED]
    assert table.moved(newest, E.ENDED, "", 1.0) == (newest,)
    assert table.moved(newest, E.DEREGISTERED, "", 1.0) == (newest, older)
    assert [each.state for each in (oldest, older, newest)] == [S.SUPERSEDED, S.DISCOVERED, S.DISCOVERED]


def test_what_is_replaced_ends_first_and_a_lost_server_is_told_apart() -> None:
    table = SocketTable()
    replaced, lost = registered(table, "/p/a.sock", "U1").plugin, registered(table, "/p/b.sock", "U2").plugin
    assert table.plan(1.0) == ()
    anew = PluginInfo("/p/a.sock", uuid="U3")
    table.made(anew)
    table.lost(lost)
    table.lost(anew)  # nobody has registered it
    assert table.plan(1.0) == (
        UnregisterPlugin(replaced),
        UnregisterPlugin(lost, is_lost=True),
        RegisterPlugin(anew),
    )
