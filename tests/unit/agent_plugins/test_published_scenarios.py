"""The scenarios of the published plugin manager's own tests, told with our classes.

Each is named as the published test (k8s.io/kubernetes v1.35.4, pkg/kubelet/pluginmanager). Where the Go module is on this machine,
the table is compared with its tests. Plugins are real servers at real sockets.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from agent.node.plugins.core.plugin_info import PluginHandler, PluginInfo
from agent.node.plugins.core.sockets import Refusal, RegisterPlugin
from agent.node.plugins.core.worlds import (
    ActualStateOfWorld,
    DesiredStateOfWorld,
    SocketPathError,
    Worlds,
)
from agent.node.plugins.manager import PluginReconciler, plugins_families
from agent.node.plugins.plugin_connection import PluginConnection
from agent.node.plugins.registrar import Registrar, RegistrationLimits
from agent.node.plugins.watcher import Watcher
from hosting import logs
from parley.node_plugins import RegistrationOffer, RegistrationServer
from tests.support.node_plugins import NotingHandler, during
from tests.support.waiting import until

GO_MODULE: Final = Path.home() / "go/pkg/mod/k8s.io/kubernetes@v1.35.4/pkg/kubelet/pluginmanager"
VERSIONS: Final = ("v1beta1", "v1beta2")
TYPE: Final = "DevicePlugin"
LOG: Final = logs.logger("test")
SOCKET: Final = "/var/lib/kubelet/device-plugins/test-plugin.sock"
Scenario = Callable[[Path], Awaitable[None]]


@asynccontextmanager
async def plugin(socket: Path, name: str = "example-plugin") -> AsyncIterator[str]:
    """A plugin that serves at the socket, and removes the socket at its end. Gives the socket's path."""
    offer = RegistrationOffer(plugin_type=TYPE, name=name, versions=VERSIONS)
    async with during(RegistrationServer(offer, socket, log=LOG).run()):
        await until(socket.is_socket)
        yield str(socket)


def new_world() -> DesiredStateOfWorld:
    return DesiredStateOfWorld(time.time_ns, lambda: str(uuid4()))


def paths(plugins: Sequence[PluginInfo]) -> list[str]:
    return sorted(each.socket_path for each in plugins)


# ------------------------------------------------------------ pluginwatcher


@asynccontextmanager
async def watched(root: Path) -> AsyncIterator[DesiredStateOfWorld]:
    desired = new_world()
    watcher = Watcher(root, desired, log=LOG, clock=time.monotonic, rng=random.Random(1))
    async with during(watcher.run()):
        yield desired


async def _desired(desired: DesiredStateOfWorld, count: int) -> None:
    await until(lambda: len(desired.get_plugins_to_register()) == count)


async def plugins_come_and_go(root: Path) -> None:
    async with watched(root) as desired:
        for number in range(10):
            async with plugin(root / f"plugin-{number}.sock", f"example-plugin-{number}") as path:
                await until(partial(desired.plugin_exists, path))
                assert paths(desired.get_plugins_to_register()) == [path]
            await _desired(desired, 0)


async def plugins_of_one_name_are_all_desired(root: Path) -> None:
    async with watched(root) as desired, AsyncExitStack() as stack:
        for number in range(10):
            await stack.enter_async_context(plugin(root / f"plugin-{number}.sock", "dep-example-plugin"))
            await _desired(desired, number + 1)


async def a_plugin_comes_back_at_its_path(root: Path) -> None:
    seen: list[PluginInfo] = []
    async with watched(root) as desired:
        for number in range(11):
            async with plugin(root / "plugin-reregistration.sock", f"dep-example-plugin-{number}") as path:
                await until(partial(desired.plugin_exists, path))
                seen += desired.get_plugins_to_register()
            await _desired(desired, 0)
    times = [each.timestamp or 0 for each in seen]
    assert len(seen) == len(set(times)) == len({each.uuid for each in seen}) == 11
    assert times == sorted(times)


async def plugins_that_were_there_first_are_found(root: Path) -> None:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(
                plugin(root / f"plugin-{number}.sock", f"example-plugin-{number}")
            )
            for number in range(10)
        ]
        async with watched(root) as desired:
            await _desired(desired, 10)
            assert paths(desired.get_plugins_to_register()) == sorted(made)


# ------------------------------------------------------------ cache


async def a_new_plugin_is_actual(_: Path) -> None:
    actual, info = ActualStateOfWorld(), PluginInfo(SOCKET, 1, "U", name="test")
    actual.add_plugin(info)
    assert actual.get_registered_plugins() == [info]
    assert actual.plugin_exists_with_correct_uuid(info)
    assert actual.plugin_exists_with_correct_timestamp(info)


async def an_actual_plugin_needs_a_path(_: Path) -> None:
    actual, info = ActualStateOfWorld(), PluginInfo("", 1, "U", name="test")
    with pytest.raises(SocketPathError, match=r"^socket path is empty$"):
        actual.add_plugin(info)
    _is_absent(actual, info)


async def a_removed_plugin_is_not_actual(_: Path) -> None:
    actual, info = ActualStateOfWorld(), PluginInfo(SOCKET, 1, "U", name="test")
    actual.add_plugin(info)
    actual.remove_plugin(SOCKET)
    _is_absent(actual, info)


def _is_absent(actual: ActualStateOfWorld, info: PluginInfo) -> None:
    assert actual.get_registered_plugins() == []
    assert not actual.plugin_exists_with_correct_uuid(info)
    assert not actual.plugin_exists_with_correct_timestamp(info)


async def another_uuid_is_another_plugin(_: Path) -> None:
    actual = ActualStateOfWorld()
    actual.add_plugin(PluginInfo(SOCKET, 1, "U1", name="test"))
    assert not actual.plugin_exists_with_correct_uuid(PluginInfo(SOCKET, 2, "U2"))


async def a_new_plugin_is_desired(_: Path) -> None:
    desired = new_world()
    desired.add_or_update_plugin(SOCKET)
    assert paths(desired.get_plugins_to_register()) == [SOCKET]
    assert desired.plugin_exists(SOCKET)


async def a_plugin_that_is_added_again_has_another_uuid(_: Path) -> None:
    desired = new_world()
    desired.add_or_update_plugin(SOCKET)
    (first,) = desired.get_plugins_to_register()
    desired.add_or_update_plugin(SOCKET)
    (second,) = desired.get_plugins_to_register()
    assert (first.socket_path, second.socket_path) == (SOCKET, SOCKET)
    assert first.uuid != second.uuid


async def a_desired_plugin_needs_a_path(_: Path) -> None:
    desired = new_world()
    with pytest.raises(SocketPathError, match=r"^socket path is empty$"):
        desired.add_or_update_plugin("")
    assert desired.get_plugins_to_register() == []
    assert not desired.plugin_exists("")


async def a_removed_plugin_is_not_desired(_: Path) -> None:
    desired = new_world()
    desired.add_or_update_plugin(SOCKET)
    desired.remove_plugin(SOCKET)
    assert desired.get_plugins_to_register() == []
    assert not desired.plugin_exists(SOCKET)


# ------------------------------------------------------------ operationexecutor


class Started(Registrar):
    """Operations that begin and do not end, at some sockets."""

    def __init__(self) -> None:
        desired = new_world()
        super().__init__(
            Worlds(desired, ActualStateOfWorld(desired.table)),
            RegistrationLimits(),
            clock=time.monotonic,
            rng=random.Random(1),
            on_step=lambda _: None,
            on_end=lambda _: None,
        )
        self.begun: list[str] = []

    async def register(self, plugin: PluginInfo, handlers: Mapping[str, PluginHandler]) -> PluginConnection:
        self.begun.append(plugin.socket_path)
        await asyncio.Event().wait()
        raise AssertionError("the wait has no end")

    async def run(self, *sockets: str) -> list[Refusal | None]:
        operations = [RegisterPlugin(PluginInfo(path, uuid=str(uuid4()))) for path in sockets]
        refused = [self.start(operation, {}) for operation in operations]
        await until(lambda: len(self.begun) == refused.count(None))
        await self.drain(0)
        return refused


async def operations_of_two_sockets_run_at_once(_: Path) -> None:
    started = Started()
    assert await started.run("plugin-0.sock", "plugin-1.sock") == [None, None]
    assert started.begun == ["plugin-0.sock", "plugin-1.sock"]


async def operations_of_one_socket_run_one_by_one(_: Path) -> None:
    started = Started()
    first, second = await started.run("plugin-serial.sock", "plugin-serial.sock")
    assert (first, second is None) == (None, False)
    assert started.begun == ["plugin-serial.sock"]


# ------------------------------------------------------------ reconciler, metrics and the whole manager


class Reconciled:
    """Two worlds, with a reconciler between them."""

    def __init__(self) -> None:
        self.desired = new_world()
        self.actual = ActualStateOfWorld(self.desired.table)
        self.handler = NotingHandler()
        self.reconciler = PluginReconciler(
            Worlds(self.desired, self.actual), {}, log=LOG, rng=random.Random(1), clock=time.monotonic
        )
        self.reconciler.add_handler(TYPE, self.handler)

    async def run(self) -> None:
        try:
            await self.reconciler.run()
        finally:
            await self.reconciler.drain(0)

    async def registered(self) -> PluginInfo:
        """The one desired plugin, once it is actual with its UUID."""
        (wanted,) = self.desired.get_plugins_to_register()
        await until(lambda: self.actual.plugin_exists_with_correct_uuid(wanted))
        (found,) = self.actual.get_registered_plugins()
        return found


async def without_plugins_nothing_is_done(_: Path) -> None:
    reconciled = Reconciled()
    async with during(reconciled.run()):
        await asyncio.sleep(0)
    assert reconciled.actual.get_registered_plugins() == reconciled.desired.get_plugins_to_register() == []


async def a_desired_plugin_is_registered(root: Path) -> None:
    reconciled = Reconciled()
    async with during(reconciled.run()), plugin(root / "plugin.sock") as path:
        reconciled.desired.add_or_update_plugin(path)
        assert (await reconciled.registered()).socket_path == path


async def a_plugin_that_is_not_desired_any_more_is_unregistered(root: Path) -> None:
    reconciled = Reconciled()
    async with during(reconciled.run()):
        async with plugin(root / "plugin.sock") as path:
            reconciled.desired.add_or_update_plugin(path)
            await reconciled.registered()
            reconciled.desired.remove_plugin(path)
        await until(lambda: not reconciled.actual.get_registered_plugins())


async def a_plugin_that_is_added_again_is_registered_again(root: Path) -> None:
    reconciled = Reconciled()
    async with during(reconciled.run()), plugin(root / "plugin2.sock", "example-plugin2") as path:
        reconciled.desired.add_or_update_plugin(path)
        first = await reconciled.registered()
        reconciled.desired.add_or_update_plugin(path)
        second = await reconciled.registered()
    assert second.socket_path == first.socket_path == path
    assert second.uuid != first.uuid


async def each_world_has_its_sample(_: Path) -> None:
    desired = new_world()
    worlds = Worlds(desired, ActualStateOfWorld(desired.table))
    worlds.desired.add_or_update_plugin("fake/path/plugin.sock")
    worlds.actual.add_plugin(PluginInfo("fake/path/plugin.sock"))
    (family,) = plugins_families(worlds)
    assert dict(family.samples) == {
        ("fake/path/plugin.sock", "desired_state_of_world"): 1,
        ("fake/path/plugin.sock", "actual_state_of_world"): 1,
    }


async def plugins_in_deeper_folders_are_managed(root: Path) -> None:
    reconciled = Reconciled()
    watcher = Watcher(root, reconciled.desired, log=LOG, clock=time.monotonic, rng=random.Random(1))
    calls = reconciled.handler.calls
    async with during(watcher.run()), during(reconciled.run()):
        for depth in range(3):
            folder = root.joinpath(*map(str, range(depth)))
            folder.mkdir(exist_ok=True)
            name, calls[:] = f"example-plugin-{depth}", []
            async with plugin(folder / f"plugin-{depth}.sock", name) as path:
                await until(lambda: len(calls) == 2)
            await until(lambda: len(calls) == 3)
            assert calls == [
                f"{each} {name} {Path(path).name}" for each in ("validate", "register", "deregister")
            ]


SCENARIOS: Final[dict[str, Scenario]] = {
    "TestPluginRegistration": plugins_come_and_go,
    "TestPluginRegistrationSameName": plugins_of_one_name_are_all_desired,
    "TestPluginReRegistration": a_plugin_comes_back_at_its_path,
    "TestPluginRegistrationAtKubeletStart": plugins_that_were_there_first_are_found,
    "Test_ASW_AddPlugin_Positive_NewPlugin": a_new_plugin_is_actual,
    "Test_ASW_AddPlugin_Negative_EmptySocketPath": an_actual_plugin_needs_a_path,
    "Test_ASW_RemovePlugin_Positive": a_removed_plugin_is_not_actual,
    "Test_ASW_PluginExistsWithCorrectUUID_Negative_WrongUUID": another_uuid_is_another_plugin,
    "Test_DSW_AddOrUpdatePlugin_Positive_NewPlugin": a_new_plugin_is_desired,
    "Test_DSW_AddOrUpdatePlugin_Positive_ExistingPlugin": a_plugin_that_is_added_again_has_another_uuid,
    "Test_DSW_AddOrUpdatePlugin_Negative_PluginMissingInfo": a_desired_plugin_needs_a_path,
    "Test_DSW_RemovePlugin_Positive": a_removed_plugin_is_not_desired,
    "TestOperationExecutor_RegisterPlugin_ConcurrentRegisterPlugin": operations_of_two_sockets_run_at_once,
    "TestOperationExecutor_RegisterPlugin_SerialRegisterPlugin": operations_of_one_socket_run_one_by_one,
    "TestOperationExecutor_UnregisterPlugin_ConcurrentUnregisterPlugin": operations_of_two_sockets_run_at_once,
    "TestOperationExecutor_UnregisterPlugin_SerialUnregisterPlugin": operations_of_one_socket_run_one_by_one,
    "Test_Run_Positive_DoNothing": without_plugins_nothing_is_done,
    "Test_Run_Positive_Register": a_desired_plugin_is_registered,
    "Test_Run_Positive_RegisterThenUnregister": a_plugin_that_is_not_desired_any_more_is_unregistered,
    "Test_Run_Positive_ReRegister": a_plugin_that_is_added_again_is_registered_again,
    "TestMetricCollection": each_world_has_its_sample,
    "TestPluginManager": plugins_in_deeper_folders_are_managed,
}
OF_GO_ITSELF: Final = {
    "TestGetStat": "a wrapper of os.Stat, for the sake of Windows",
    "TestGetStatWindows": "a wrapper of os.Lstat on Windows",
    "TestGetSocketPath": "gives the path back as it is; on Windows it is turned into another one",
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_the_published_scenario_holds(scenario: Scenario, tmp_path: Path) -> None:
    await scenario(tmp_path)


def test_every_published_test_is_told() -> None:
    if not GO_MODULE.is_dir():
        pytest.skip(f"{GO_MODULE} is not there: `make kube-assets` downloads the module")
    texts = [file.read_text() for file in GO_MODULE.rglob("*_test.go")]
    published = {name for text in texts for name in re.findall(r"^func (Test\w+)\(", text, re.MULTILINE)}
    assert published == SCENARIOS.keys() | OF_GO_ITSELF.keys()
