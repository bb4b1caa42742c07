"""The whole plugin manager over a folder that is broken in many ways: what is mended is registered again, and nobody else is held up."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.registrar import RegistrationLimits
from agent.node.plugins.sdk import serving as sdk
from hosting import logs
from parley.node_plugins import RegistrationOffer, RegistrationServer
from tests.support.node_plugins import ManagedFolder, during, managed
from tests.support.waiting import until
from tests.unit.agent_plugins.registry_folder import make_socket

REGISTERED = PluginState.REGISTERED
AGAIN = ["validate good good.sock", "register good good.sock"]
Break = Callable[[Path], object]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin looks often whether its socket is still there."""
    monkeypatch.setattr(sdk, "LOOK_S", 0.01)


@asynccontextmanager
async def good_plugin(root: Path) -> AsyncIterator[None]:
    offer = RegistrationOffer(plugin_type="DevicePlugin", name="good", versions=("v1",))
    async with during(RegistrationServer(offer, root / "good.sock", log=logs.logger("test")).run()):
        yield


async def is_registered(folder: ManagedFolder) -> None:
    await until(lambda: folder.states().get("good.sock") is REGISTERED)


def removed(root: Path) -> None:
    shutil.rmtree(root)


def renamed_away(root: Path) -> None:
    root.rename(root.with_name("away"))


def replaced_by_a_file(root: Path) -> None:
    root.rename(root.with_name("away"))
    root.touch()


def replaced_by_a_link_to_itself(root: Path) -> None:
    root.rename(root.with_name("away"))
    root.symlink_to(root)


def replaced_by_another_folder(root: Path) -> None:
    root.with_name("other").mkdir()
    root.rename(root.with_name("away"))
    root.with_name("other").rename(root)


def emptied(root: Path) -> None:
    (root / "good.sock").unlink()


def mended(root: Path) -> None:
    """Whatever stands in the folder's place and is no folder goes."""
    if root.is_symlink() or root.is_file():
        root.unlink()


@pytest.mark.parametrize(
    "break_",
    [
        removed,
        renamed_away,
        replaced_by_a_file,
        replaced_by_a_link_to_itself,
        replaced_by_another_folder,
        emptied,
    ],
)
async def test_a_plugin_is_registered_again_once_its_folder_is_mended(break_: Break, tmp_path: Path) -> None:
    async with managed(tmp_path / "r") as folder, good_plugin(folder.root):
        await is_registered(folder)
        for _ in range(2):
            folder.handler.calls.clear()
            break_(folder.root)
            await until(lambda: "deregister good good.sock" in folder.handler.calls)
            mended(folder.root)
            folder.manager.rescan()
            await until(lambda: "register good good.sock" in folder.handler.calls)
            await is_registered(folder)
            _check_order(folder.handler.calls)
            shutil.rmtree(tmp_path / "away", ignore_errors=True)


def _check_order(calls: list[str]) -> None:
    words = [each.split()[0] for each in calls]
    assert words == ["deregister", "validate", "register"] * (len(words) // 3)


async def test_sockets_where_nobody_listens_hold_no_plugin_up(tmp_path: Path) -> None:
    async with managed(tmp_path / "r", RegistrationLimits(dial_s=1000.0)) as folder:
        await until(folder.root.is_dir)
        for number in range(100):
            make_socket(folder.root / f"dead-{number}.sock")
        await until(lambda: len(folder.states()) == 100)
        async with good_plugin(folder.root):
            await is_registered(folder)


async def test_a_flood_beside_a_plugin_leaves_its_registration_alone(tmp_path: Path) -> None:
    async with managed(tmp_path / "r", RegistrationLimits(dial_s=0.1)) as folder, good_plugin(folder.root):
        await is_registered(folder)
        for number in range(300):
            path = folder.root / f"{number % 7}"
            make_socket(path)
            if number % 10 == 0:
                await asyncio.sleep(0)
            path.unlink() if number % 2 else path.rename(folder.root / f".{number}")
        await until(lambda: folder.states() == {"good.sock": REGISTERED})
        assert folder.handler.calls == AGAIN
