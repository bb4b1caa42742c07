"""Peers that are no plugin, or a bad one, on real sockets: each costs its callers their deadline at most, and nobody else anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from agent.node.plugins.ports import PluginError
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.proto.metricssource_v1_pb2 import DescribeResponse, ReadResponse
from agent.node.plugins.types.calls import PluginLimits
from agent.node.plugins.types.catalogue import Catalogue
from parley.node_plugins import (
    MetricsSourcePlugin,
    PluginVm,
    RegistrationOffer,
    RegistrationServer,
    SocketTakenError,
    VmReading,
    serve_until_told,
)
from tests.support.plugin_registry import catalogue, register
from tests.support.waiting import PATIENCE_S, until
from tests.unit.agent.driver import VM

SHORT: Final = PluginLimits(call_deadline_s=0.2, register_deadline_s=0.5)
LONG: Final = PluginLimits(call_deadline_s=PATIENCE_S, register_deadline_s=PATIENCE_S)
SERVICE: Final = "parley.metricssource.v1.MetricsSource"
Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


# ---------------------------------------------------------------- no gRPC at all


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ends the connection."""


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


async def speaks_http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers everything with a page."""
    await reader.read(16)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await reader.read()


async def sends_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends bytes until the other side has had enough."""
    for _ in range(1000):
        writer.write(b"\xff" * 65536)
        await writer.drain()


@asynccontextmanager
async def talking(peer: Streams, path: str) -> AsyncIterator[None]:
    """A server of such connections, for the length of a block."""
    tasks: list[asyncio.Task[Any]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await peer(reader, writer)
        except ConnectionError:
            pass  # the other side has had enough
        finally:
            writer.transport.abort()

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield
    finally:
        server.close()
        await until(lambda: all(task.done() for task in tasks))


@pytest.mark.parametrize("peer", [closes, says_nothing, speaks_http1, sends_garbage])
async def test_who_speaks_no_grpc_is_not_registered(peer: Streams, tmp_path: Path) -> None:
    path = str(tmp_path / "p.sock")
    async with talking(peer, path), catalogue(SHORT) as made:
        handler = made.handlers()["MetricsSource"]
        with pytest.raises(
            PluginError, match=r"Describe at .*p\.sock: (no answer within 0\.5 s|UNAVAILABLE)"
        ):
            await handler.register_plugin("p", path, ["v1"])
        assert not made.is_registered("MetricsSource", "p")


# ---------------------------------------------------------------- gRPC, with bad answers


@asynccontextmanager
async def serving(path: Path, read: Callable[[], Awaitable[bytes]], name: str = "p") -> AsyncIterator[None]:
    """A server of metrics sources that answers Read with the bytes that `read` gives."""
    described = DescribeResponse(identity=shared.PluginIdentity(name=name)).SerializeToString()

    async def describe(request: bytes, context: Any) -> bytes:
        return described

    async def answer(request: bytes, context: Any) -> bytes:
        return await read()

    methods: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Read": grpc.unary_unary_rpc_method_handler(answer),
    }
    server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def registered(made: Catalogue, path: Path) -> None:
    await made.handlers()["MetricsSource"].register_plugin("p", str(path), ["v1"])


def always(answer: bytes) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        return answer

    return read


GOOD: Final = ReadResponse(vm_uid=VM.pod_uid, load1=1.0).SerializeToString()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"x" * (100 * 2**20), "RESOURCE_EXHAUSTED"),
        (
            ReadResponse(vm_uid="x" * 900_000).SerializeToString(),
            r"vm_uid: must repeat 'uid-a', not 'x{59}…$",
        ),
        (b"\xff\xff\xff", "its bytes are no message of the expected type"),
        (
            DescribeResponse(identity=shared.PluginIdentity(name="x")).SerializeToString(),
            "vm_uid: must repeat|INTERNAL",
        ),
        (b"", "vm_uid: must repeat 'uid-a', not ''"),
    ],
    ids=["100 MiB", "a long text", "no message", "another message", "nothing"],
)
async def test_an_answer_that_is_none_is_an_error_of_the_plugin(
    answer: bytes, text: str, tmp_path: Path
) -> None:
    answers = [answer, GOOD]

    async def read() -> bytes:
        return answers.pop(0)

    async with catalogue(LONG) as made, serving(tmp_path / "p.sock", read):
        await registered(made, tmp_path / "p.sock")
        source = made.metrics_source("p")
        with pytest.raises(PluginError, match=text):
            await source.read(VM)
        assert (await source.read(VM)).load1 == 1.0
        figures = made.figures("MetricsSource", "p")
        assert (figures.made, figures.failed, figures.in_flight) == (2, 1, 0)
        assert len(figures.last_error or "") < 1200


async def test_a_new_registration_takes_over_and_loses_no_call(tmp_path: Path) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> bytes:
        begun.set()
        await goes_on.wait()
        return ReadResponse(vm_uid=VM.pod_uid, load1=1.0).SerializeToString()

    new = always(ReadResponse(vm_uid=VM.pod_uid, load1=2.0).SerializeToString())
    first, second = tmp_path / "p-1.sock", tmp_path / "p-2.sock"
    async with catalogue(LONG) as made, serving(first, slow), serving(second, new):
        await registered(made, first)
        source, handler = made.metrics_source("p"), made.handlers()["MetricsSource"]
        under_way = asyncio.create_task(source.read(VM))
        await begun.wait()
        await registered(made, second)
        assert (await source.read(VM)).load1 == 2.0
        await handler.deregister_plugin("p", str(first))
        assert made.is_registered("MetricsSource", "p")
        goes_on.set()
        assert (await under_way).load1 == 1.0
        await handler.deregister_plugin("p", str(second))
        assert not made.is_registered("MetricsSource", "p")


# ---------------------------------------------------------------- what authors import


class Blocking(MetricsSourcePlugin):
    """A plugin whose plain method blocks until all its callers are there."""

    name = "blocking"

    def __init__(self, parties: int) -> None:
        import threading  # noqa: PLC0415 - only here

        self._barrier = threading.Barrier(parties, timeout=PATIENCE_S)

    def read(self, vm: PluginVm) -> VmReading:
        self._barrier.wait()
        return VmReading(load1=1.0)


class Wrong(MetricsSourcePlugin):
    """A plugin whose author has made a mistake."""

    name = "wrong"

    async def read(self, vm: PluginVm) -> VmReading:
        return 7  # type: ignore[return-value]  # the mistake


@asynccontextmanager
async def served(plugin: MetricsSourcePlugin, registry: Path) -> AsyncIterator[Path]:
    task = asyncio.create_task(serve_until_told(plugin, registry=registry))
    socket = registry / f"MetricsSource-{plugin.name}.sock"
    try:
        await until(socket.exists, beside=task)
        yield socket
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_plain_methods_run_beside_each_other(tmp_path: Path) -> None:
    async with catalogue() as made, served(Blocking(3), tmp_path) as socket:
        await register(made, socket)
        source = made.metrics_source("blocking")
        samples = await asyncio.gather(*(source.read(VM) for _ in range(3)))
        assert [each.load1 for each in samples] == [1.0] * 3


async def test_a_mistake_of_an_author_is_told_to_the_agent(tmp_path: Path) -> None:
    async with catalogue() as made, served(Wrong(), tmp_path) as socket:
        await register(made, socket)
        with pytest.raises(PluginError, match="UNKNOWN: TypeError: read must return a VmReading, not 7"):
            await made.metrics_source("wrong").read(VM)


async def test_a_plugin_without_a_name_or_a_type_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"MetricsSourcePlugin\.name must be the plugin's name, not ''"):
        await serve_until_told(MetricsSourcePlugin(), registry=tmp_path)


@pytest.mark.parametrize("name", ["x" * 107, "a,b/p.sock"])
async def test_a_path_that_no_socket_can_have_is_refused_at_once(name: str) -> None:
    with pytest.raises(
        ValueError, match="socket: the path must have at most 107 bytes, and no comma in the folder, not"
    ):
        RegistrationServer(RegistrationOffer("Policy", "p", ("v1",)), Path("/run") / name)


async def test_a_socket_that_is_removed_is_made_again_also_with_its_folder(tmp_path: Path) -> None:
    statuses: list[str | None] = []
    registry = tmp_path / "registry"
    socket = registry / "p #1 100%.sock"
    server = RegistrationServer(RegistrationOffer("Policy", "p", ("v1",)), socket, on_status=statuses.append)
    task = asyncio.create_task(server.run())
    registry.mkdir()
    await until(socket.exists, beside=task)
    assert [path.name for path in registry.iterdir()] == [socket.name]
    first = socket.lstat()
    socket.unlink()
    await until(lambda: socket.exists() and socket.lstat().st_ctime_ns != first.st_ctime_ns, beside=task)
    socket.unlink()
    registry.rmdir()
    await asyncio.sleep(0)
    registry.mkdir()
    await until(socket.exists, beside=task)
    async with catalogue() as made:
        with pytest.raises(PluginError):  # it serves the registration only
            await register(made, socket)
    assert statuses != [None]
    assert len(statuses) == 1
    task.cancel()
    await asyncio.wait([task])
    assert list(registry.iterdir()) == []


async def test_a_socket_that_another_server_has_taken_is_left_to_that_server(tmp_path: Path) -> None:
    socket = tmp_path / "p.sock"
    first, second = (
        asyncio.create_task(RegistrationServer(RegistrationOffer("Policy", "p", (version,)), socket).run())
        for version in ("v1", "v2")
    )
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    (ended,), (left,) = ([each for each in (first, second) if each.done() is done] for done in (True, False))
    assert isinstance(ended.exception(), SocketTakenError)
    assert socket.exists()
    left.cancel()
    await asyncio.wait([left])
    assert not socket.exists()
