"""The watcher copes with lost events, a folder that is broken in every way, and very many sockets, beyond the recordings."""

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.node.plugins import watcher
from agent.node.plugins.core.worlds import Sockets
from agent.node.plugins.watcher import FolderLook, SocketTree
from hosting.backoff import Backoff
from tests.support.waiting import PATIENCE_S, until
from tests.unit.agent_plugins.registry_folder import (
    DeafTree,
    Folder,
    WatchedFolder,
    clock_went_on,
    make_socket,
)

SOON_S = 0.005


class Registry(Folder):
    """The watched folder `r`, with the watcher above it."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.root = base / "r"
        self.watched = WatchedFolder(self.root)

    def desired(self) -> list[str]:
        return sorted(path.removeprefix(f"{self.root}/") for path in self.watched.world.uuids())

    async def with_deaf_kernel(self) -> None:
        """From now on nothing is told: only the looks from time to time see changes."""
        await self.watched.stop()
        self.watched = WatchedFolder(
            self.root, rescan_s=SOON_S, tree=DeafTree(self.root), world=self.watched.world
        )
        await self.watched.start_unsettled()


@pytest.fixture
async def registry(tmp_path: Path) -> Any:
    made = Registry(tmp_path)
    await made.watched.start()
    yield made
    await made.watched.stop()


async def test_a_missing_folder_is_made_for_its_owner_alone(registry: Registry) -> None:
    assert stat.S_IMODE(registry.root.stat().st_mode) == 0o700


CHANGES_NOBODY_TOLD = [
    pytest.param(["r/a.sock"], [("socket", "r/b.sock")], ["a.sock", "b.sock"], {"b.sock"}, id="made"),
    pytest.param(["r/a.sock"], [("remove", "r/a.sock")], [], set(), id="removed"),
    pytest.param(["r/a.sock"], [("replace", "r/a.sock")], ["a.sock"], {"a.sock"}, id="replaced"),
    pytest.param(["r/a.sock"], [("chmod", "r/a.sock"), ("touch", "r/a.sock")], ["a.sock"], set(), id="touched"),
    pytest.param(["r/a.sock"], [("remove", "r/a.sock"), ("file", "r/a.sock")], [], set(), id="replaced by a file"),
    pytest.param(["r/a.sock"], [("rename", "r/a.sock", "r/.a.sock")], [], set(), id="hidden"),
    pytest.param(["r/a.sock"], [("symlink", "r/l", "r/a.sock")], ["a.sock", "l"], {"l"}, id="linked"),
    pytest.param(["r/a.sock"], [("symlink", "r/loop", "r/loop"), ("symlink", "r/self", "r")], ["a.sock"], set(), id="in circles"),
    pytest.param(["r/a.sock"], [("rmtree", "r")], [], set(), id="the folder removed"),
    pytest.param(["r/a.sock"], [("rename", "r", "s"), ("mkdir", "r"), ("socket", "r/a.sock")], ["a.sock"], {"a.sock"}, id="the folder replaced"),
    pytest.param(["r/a.sock"], [("rename", "r", "s"), ("symlink", "r", "s")], ["a.sock"], set(), id="the folder is a link now"),
]  # fmt: skip


@pytest.mark.parametrize(("at_first", "operations", "desired", "renewed"), CHANGES_NOBODY_TOLD)
async def test_a_change_that_nobody_told_of_is_seen_from_time_to_time(
    registry: Registry,
    tmp_path: Path,
    at_first: list[str],
    operations: list[tuple[str, ...]],
    desired: list[str],
    renewed: set[str],
) -> None:
    for path in at_first:
        registry.socket(path)
    await registry.watched.settled()
    await clock_went_on(tmp_path)
    await registry.with_deaf_kernel()
    before = registry.watched.world.uuids()
    for each in operations:
        registry.perform(*each)
    await registry.watched.looked_again()
    assert registry.desired() == desired
    after = registry.watched.world.uuids()
    assert {
        name for name in desired if after[f"{registry.root}/{name}"] != before.get(f"{registry.root}/{name}")
    } == renewed


async def test_a_link_to_a_folder_is_never_followed(registry: Registry) -> None:
    """The published watcher follows one that is made while it runs: it finds the sockets that come there from then on, and only those."""
    registry.mkdir("out")
    registry.socket("out/before.sock")
    registry.symlink("r/l", "out")
    registry.socket("out/later.sock")
    registry.socket("r/a.sock")
    await registry.watched.changed("a.sock")
    assert registry.desired() == ["a.sock"]


async def test_a_link_whose_socket_is_gone_is_not_desired_any_more(registry: Registry) -> None:
    registry.mkdir("out")
    registry.socket("out/a.sock")
    registry.symlink("r/l.sock", "out/a.sock")
    await registry.watched.changed("l.sock")
    registry.remove("out/a.sock")
    registry.watched.rescan()
    await registry.watched.changed("-l.sock")


async def test_the_folder_is_made_and_watched_again_as_often_as_it_is_removed(registry: Registry) -> None:
    for _ in range(3):
        registry.socket("r/a.sock")
        await registry.watched.changed("a.sock")
        registry.rmtree("r")
        await registry.watched.changed("-a.sock")
        await registry.watched.settled()
    assert registry.root.is_dir()


async def test_a_file_in_place_of_the_folder_is_told_once_and_waited_out(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.watched, "_backoff", Backoff(base_s=SOON_S, cap_s=SOON_S))
    registry.socket("r/a.sock")
    await registry.watched.changed("a.sock")
    with capture_logs() as lines:
        registry.rename("r", "s")
        registry.file("r")
        await registry.watched.changed("-a.sock")
        await registry.watched.looked_again(5)
        registry.remove("r")
        registry.rename("s", "r")
        await registry.watched.changed("a.sock")
    told = [(line["log_level"], line["event"]) for line in lines]
    assert told == [
        ("warning", "folder of plugins cannot be watched"),
        ("info", "folder of plugins is watched again"),
    ]


async def test_sockets_stay_desired_while_nobody_can_see_them(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without permission, an error of the disk: neither says that a socket is gone. The tests run as root, who may
    read everything, so the refusal is made up."""
    registry.mkdir("r/x")
    registry.socket("r/x/a.sock")
    await registry.watched.changed("x/a.sock")

    def refused(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        patched.setattr(watcher, "socket_identity", refused)
        registry.watched.rescan()
        await registry.watched.looked_again(1)
        assert registry.desired() == ["x/a.sock"]
    assert registry.watched.world.added.total() == 1


async def test_a_part_that_cannot_be_read_is_told_and_the_rest_is_watched(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.scandir

    def refused(path: str) -> Any:
        if path.endswith("/x"):
            raise PermissionError(13, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(os, "scandir", refused)
    with capture_logs() as lines:
        registry.mkdir("r/x")
        registry.socket("r/a.sock")
        await registry.watched.changed("a.sock")
        await registry.watched.settled()
    assert [(line["event"], line["error"]) for line in lines] == [
        ("folder of plugins is watched in part", f"{registry.root}/x: Permission denied")
    ]


async def test_without_watches_of_the_kernel_the_folder_is_looked_at_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object, **__: object) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watcher, "Inotify", none_left)
    watched = WatchedFolder(tmp_path, rescan_s=SOON_S)
    with capture_logs() as lines:
        await watched.start_unsettled()
        make_socket(tmp_path / "a.sock")
        await watched.changed("a.sock")
        await watched.stop()
    assert [line["error"] for line in lines] == ["no changes are told: Too many open files"]


async def test_a_socket_is_known_by_its_last_modification_where_nobody_tells_when_it_was_made(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_libc", object())
    registry.socket("r/a.sock")
    await registry.watched.changed("a.sock")
    os.utime(registry.root / "a.sock", ns=(1, 1))
    registry.watched.rescan()
    await registry.watched.looked_again(1)
    assert registry.watched.world.added.total() == 2


async def test_a_tree_that_is_too_large_is_looked_at_in_part_and_forgets_only_what_is_gone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.sockets("r/s", "9")
    await registry.watched.changed("s008.sock")
    monkeypatch.setattr(watcher, "ENTRIES_MAX", 3)
    with capture_logs() as lines:
        registry.removes("r/s", "5")
        await registry.watched.changed("-s004.sock")
        await registry.watched.settled()
    assert registry.desired() == [f"s{number:03}.sock" for number in range(5, 9)]
    assert {line["error"] for line in lines} == {
        f"{registry.root}: more than 3 names, the rest is not looked at"
    }


@pytest.mark.parametrize("turns", range(4))
async def test_the_end_is_heard_beside_a_change(registry: Registry, turns: int) -> None:
    """Also where the change was told so many turns of the loop before."""
    await registry.watched.start()
    registry.watched.rescan()
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(registry.watched.stop(), PATIENCE_S)


async def test_a_flood_of_sockets_ends_in_the_truth(registry: Registry) -> None:
    registry.mkdir("r/x/y")
    for number in range(400):
        registry.socket(f"r/x/y/{number}")
        registry.socket(f"r/{number}")
        if number % 3:
            registry.remove(f"r/x/y/{number}")
        if number % 50 == 0:
            await asyncio.sleep(0)
    await registry.watched.settled()
    left = [f"{number}" for number in range(400)]
    assert registry.desired() == sorted([*left, *(f"x/y/{each}" for each in left if int(each) % 3 == 0)])
    assert max(registry.watched.world.added.values()) == 1


async def test_folders_that_were_moved_away_are_not_listened_to(registry: Registry) -> None:
    registry.mkdir("r/x/y")
    registry.socket("r/x/y/a.sock")
    await registry.watched.changed("x/y/a.sock")
    registry.rename("r/x", "out")
    await registry.watched.changed("-x/y/a.sock")
    await registry.watched.settled()
    looks = registry.watched.looks
    registry.socket("out/y/b.sock")
    await registry.watched.settled()
    assert registry.watched.looks == looks


class HangingTree(SocketTree):
    """A tree on a file system that hangs until `goes_on` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()
        self.inside = self.most = 0

    def look(self, known: Sockets) -> FolderLook:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.goes_on.wait()
        self.inside -= 1
        return super().look(known)


async def test_a_file_system_that_hangs_is_waited_for_by_one_thread_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LOOK_S_MAX", SOON_S)
    make_socket(tmp_path / "a.sock")
    tree = HangingTree(tmp_path)
    watched = WatchedFolder(tmp_path, rescan_s=SOON_S, tree=tree)
    monkeypatch.setattr(watched, "_backoff", Backoff(base_s=SOON_S, cap_s=SOON_S))
    with capture_logs() as lines:
        await watched.start_unsettled()
        await watched.looked_again(3)
        tree.goes_on.set()
        await watched.changed("a.sock")
        await until(lambda: len(lines) > 1)
        await watched.stop()
    assert tree.most == 1
    assert [line["event"] for line in lines][:2] == [
        "folder of plugins cannot be watched",
        "folder of plugins is watched again",
    ]
