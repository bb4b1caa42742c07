"""The whole manager on real sockets: names that mean nothing, and a manager that is run again after a fault of ours."""

import asyncio
import os
from pathlib import Path

import pytest

from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.registrar import RegistrationLimits
from agent.node.plugins.watcher import Watcher
from tests.support.node_plugins import ManagedFolder, during, managed
from tests.support.waiting import until
from tests.unit.agent_plugins.plugin_servers import Plugin

NAMES = (
    "a?b.sock",
    "a#b.sock",
    "a%41.sock",
    "a%zz.sock",
    "a b.sock",
    "é日.sock",
    "a\nb.sock",
    "a:b.sock",
    "a,b;c.sock",
    "a\\b.sock",
    '"a".sock',
    "@a.sock",
    "a&b=c.sock",
)


def plugin(path: Path, name: str = "gpu") -> Plugin:
    """A plugin of the type that the folder's handler takes."""
    return Plugin(path, "DevicePlugin", name)


async def test_the_name_of_a_socket_means_nothing(tmp_path: Path) -> None:
    async with managed(tmp_path / "registry", RegistrationLimits(dial_s=5.0)) as folder:
        await until(folder.root.exists)
        plugins = [plugin(folder.root / name, f"gpu-{number}") for number, name in enumerate(NAMES)]
        for each in plugins:
            await each.start()
        await until(lambda: folder.states() == dict.fromkeys(NAMES, PluginState.REGISTERED))
        for each in plugins:
            await each.stop()
        await until(lambda: folder.states() == {})


async def test_a_path_that_is_longer_than_the_kernel_takes_is_dialled(tmp_path: Path) -> None:
    deep = tmp_path / "registry" / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    descriptor = os.open(deep, os.O_RDONLY)
    try:
        inside = plugin(Path(f"/proc/self/fd/{descriptor}/a.sock"))
        await inside.start()
        async with managed(tmp_path / "registry") as folder:
            await until(lambda: PluginState.REGISTERED in folder.states().values())
        await inside.stop()
    finally:
        os.close(descriptor)


async def test_a_manager_that_is_run_again_goes_on_with_what_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ManagedFolder(tmp_path / "registry")
    server = plugin(folder.root / "a.sock")
    faults = [asyncio.Event()]
    watch = Watcher.run

    async def faulty(watcher: Watcher, started: asyncio.Event | None = None) -> None:
        if not faults:
            return await watch(watcher, started)
        async with during(watch(watcher, started)):
            await faults[0].wait()
        faults.pop()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Watcher, "run", faulty)
    first = asyncio.create_task(folder.manager.run())
    await until(folder.root.exists)
    await server.start()
    await folder.reach(a=PluginState.REGISTERED)
    faults[0].set()
    with pytest.raises(ExceptionGroup):
        await first
    async with during(folder.manager.run()):
        await folder.reach(a=PluginState.REGISTERED)
        await server.stop()
        await folder.called("validate gpu a.sock", "register gpu a.sock", "deregister gpu a.sock")
