"""The example plugin of the kubelet's own tree, a process in Go, registers with our plugin manager over its socket."""

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from agent.node.plugins.core.plugin_info import PluginState
from labs.clusters.programs import ClusterProcess
from tests.support.kube.assets import example_plugin
from tests.support.node_plugins import ManagedFolder, managed
from tests.support.waiting import until

Start: TypeAlias = Callable[..., ClusterProcess]
REGISTERED, SUPERSEDED, FAILED = PluginState.REGISTERED, PluginState.SUPERSEDED, PluginState.FAILED


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[ManagedFolder]:
    async with managed(tmp_path / "r") as made:
        await until(made.root.is_dir)
        yield made


@pytest.fixture
def start(folder: ManagedFolder, tmp_path: Path) -> Iterator[Start]:
    program, started = example_plugin(), list[ClusterProcess]()

    def made(socket: str, **options: str) -> ClusterProcess:
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = [str(program), f"--socket={folder.root / socket}.sock", *flags]
        started.append(ClusterProcess(f"{socket}-{len(started)}", command, tmp_path))
        return started[-1]

    yield made
    for each in started:
        each.end(signal.SIGKILL)


async def _says(process: ClusterProcess, line: str) -> None:
    await until(lambda: line in process.output.read_text().splitlines())


async def test_the_plugin_is_registered_until_it_ends(folder: ManagedFolder, start: Start) -> None:
    process = start("a", name="example")
    await _says(process, 'told true ""')
    await folder.called("validate example a.sock", "register example a.sock")
    assert folder.handler.versions == [("v1beta1", "v1beta2")]
    await folder.reach(a=REGISTERED)
    process.end()
    await folder.reach()
    assert folder.handler.calls[2:] == ["deregister example a.sock"]
