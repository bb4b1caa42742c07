"""Plugin processes on real sockets, and the plugin manager over their folder: every way of the registration's state machine."""

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest

from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.registrar import RegistrationLimits
from tests.support.node_plugins import ManagedFolder, NotingHandler, during
from tests.support.processes import Program, running
from tests.support.waiting import until

FAILED, REGISTERED, SUPERSEDED = PluginState.FAILED, PluginState.REGISTERED, PluginState.SUPERSEDED


class FailingHandler(NotingHandler):
    """A handler that fails once in the call `fails_in`."""

    fails_in = ""

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Sequence[str]) -> None:
        await super().validate_plugin(plugin_name, endpoint, versions)
        self._fail("validate")

    async def register_plugin(
        self,
        plugin_name: str,
        endpoint: str,
        versions: Sequence[str],
        plugin_client_timeout_s: float | None = None,
    ) -> None:
        await super().register_plugin(plugin_name, endpoint, versions, plugin_client_timeout_s)
        self._fail("register")

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        await super().deregister_plugin(plugin_name, endpoint)
        self._fail("deregister")

    def _fail(self, call: str) -> None:
        if self.fails_in == call:
            self.fails_in = ""
            raise RuntimeError("no use")


class Node:
    """A folder with a plugin manager that runs, and plugin processes."""

    def __init__(self, folder: ManagedFolder, handler: FailingHandler, stack: ExitStack) -> None:
        self.folder = folder
        self.handler = handler
        self._stack = stack

    def plugin(self, socket: str, *, version: str = "v1", moods: tuple[str, ...] = ()) -> Program:
        """Start the process of a plugin called `gpu` at a socket."""
        output = self.folder.root.with_name(f"{socket}.txt")
        path = self.folder.root / f"{socket}.sock"
        arguments = (str(path), "gpu", version, *moods)
        module = "tests.processes.stand_ins.moody_plugin"
        return self._stack.enter_context(running(module, *arguments, output=output))

    def error(self, socket: str) -> str:
        """What the last try to register the plugin at the socket failed with."""
        return next(
            each.last_error
            for each in self.folder.manager.statuses()
            if each.socket_path.endswith(f"/{socket}.sock")
        )

    async def told(self, program: Program, *lines: str) -> None:
        """Wait until the plugin was asked and told so much; on a busy machine it may be asked again before it answers."""
        told = [line for line, _ in groupby(lines)]
        await until(lambda: [line for line, _ in groupby(program.text().splitlines())] == told)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    folder = ManagedFolder(tmp_path / "registry", RegistrationLimits(dial_s=5.0, get_info_s=3.0))
    handler = FailingHandler()
    folder.manager.add_handler("DevicePlugin", handler)
    folder.handler = handler
    with ExitStack() as stack:
        async with during(folder.manager.run()):
            yield Node(folder, handler, stack)


async def test_a_plugin_registers_and_its_deleted_socket_ends_that(node: Node) -> None:
    program = node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    await node.told(program, "get_info", "notify True")
    (node.folder.root / "a.sock").unlink()
    await node.folder.reach()
    assert node.handler.calls == ["validate gpu a.sock", "register gpu a.sock", "deregister gpu a.sock"]


async def test_a_new_version_on_a_new_socket_takes_over_and_the_old_one_ends_unheard(node: Node) -> None:
    node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    node.plugin("b", version="v2")
    await node.folder.reach(a=SUPERSEDED, b=REGISTERED)
    (node.folder.root / "a.sock").unlink()
    await node.folder.reach(b=REGISTERED)
    (node.folder.root / "b.sock").unlink()
    await node.folder.reach()
    calls = ["validate gpu a.sock", "register gpu a.sock"]
    assert node.handler.calls == [
        *calls,
        *(call.replace("a.", "b.") for call in calls),
        "deregister gpu b.sock",
    ]
    assert node.handler.versions == [("v1",), ("v2",)]


async def test_an_old_version_is_registered_again_when_the_new_one_ends(node: Node) -> None:
    node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    new = node.plugin("b", version="v2")
    await node.folder.reach(a=SUPERSEDED, b=REGISTERED)
    new.end(signal.SIGKILL)
    await until(lambda: node.folder.states()["a.sock"] is REGISTERED)
    assert node.folder.states()["b.sock"] in {FAILED, PluginState.CONNECTING}
    assert node.handler.calls[4:] == ["deregister gpu b.sock", "validate gpu a.sock", "register gpu a.sock"]


async def test_a_replaced_socket_is_registered_anew(node: Node) -> None:
    old = node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    new = node.plugin("a", version="v2")
    await until(lambda: len(node.handler.calls) == 5)
    await node.folder.reach(a=REGISTERED)
    assert node.handler.calls[2:] == ["deregister gpu a.sock", "validate gpu a.sock", "register gpu a.sock"]
    assert node.handler.versions == [("v1",), ("v2",)]
    assert old.process.poll() is None
    assert new.process.poll() is None


async def test_a_killed_process_is_noticed_and_its_successor_registers(node: Node) -> None:
    program = node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    program.end(signal.SIGKILL)
    await node.folder.reach(a=FAILED)
    assert (node.folder.root / "a.sock").is_socket(), "the file stays when a process is killed"
    assert node.handler.calls[2:] == ["deregister gpu a.sock"]
    node.plugin("a", version="v2")
    await until(lambda: node.handler.versions[-1] == ("v2",))
    await node.folder.reach(a=REGISTERED)


async def test_a_plugin_that_hangs_holds_nobody_up_and_its_successor_registers(node: Node) -> None:
    hanging = node.plugin("a", moods=("get_info", "hangs"))
    await node.told(hanging, "get_info")
    node.plugin("b")
    await until(lambda: node.folder.states().get("b.sock") is REGISTERED)
    await until(lambda: node.folder.states()["a.sock"] is FAILED)
    assert "DeadlineExceeded" in node.error("a")
    hanging.end(signal.SIGKILL)
    node.plugin("a")
    await node.folder.reach(a=REGISTERED, b=SUPERSEDED)


@pytest.mark.parametrize(
    ("fails_in", "moods", "calls", "told", "error"),
    [
        ("", ("get_info", "fails"), [], ["get_info"], "did not say what it is"),
        ("", ("get_info", "lies"), [], ["get_info"], "did not say what it is"),
        (
            "validate",
            (),
            ["validate"],
            ["get_info", "notify False RegisterPlugin error -- plugin validation failed with err: no use"],
            "refused: no use",
        ),
        (
            "register",
            (),
            ["validate", "register"],
            ["get_info", "notify False RegisterPlugin error -- plugin registration failed with err: no use"],
            "cannot be used: no use",
        ),
        (
            "",
            ("notify", "fails"),
            ["validate", "register", "deregister"],
            ["get_info", "notify True"],
            "did not take the news",
        ),
    ],
    ids=["get_info", "get_info_lies", "validate", "register", "notify"],
)
async def test_an_error_at_a_step_is_told_undone_and_tried_again(
    node: Node, fails_in: str, moods: tuple[str, ...], calls: list[str], told: list[str], error: str
) -> None:
    node.handler.fails_in = fails_in
    errors: list[str] = []
    program = node.plugin("a", moods=moods)
    await until(lambda: node.folder.states().get("a.sock") is FAILED)
    errors.append(node.error("a"))
    await node.folder.reach(a=REGISTERED)
    assert error in errors[0]
    assert node.error("a") == ""
    assert node.handler.calls == [f"{call} gpu a.sock" for call in [*calls, "validate", "register"]]
    await node.told(program, *told, "get_info", "notify True")


async def test_a_handler_that_fails_to_deregister_does_not_keep_the_successor_out(node: Node) -> None:
    program = node.plugin("a")
    await node.folder.reach(a=REGISTERED)
    node.handler.fails_in = "deregister"
    program.end(signal.SIGKILL)
    await node.folder.reach(a=FAILED)
    node.plugin("a", version="v2")
    await until(lambda: node.handler.versions[-1] == ("v2",))
    await node.folder.reach(a=REGISTERED)
    assert node.handler.calls[2] == "deregister gpu a.sock"
