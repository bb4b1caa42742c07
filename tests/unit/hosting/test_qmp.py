"""The connection to QMP, against a stand-in that speaks the protocol over a Unix socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hosting import qmp
from hosting.qmp import QmpAbsentError, QmpClosedError, QmpError, QmpEvent, QmpRefusedError

Answer: TypeAlias = Callable[["StandIn", dict[str, Any]], Awaitable[None]]
GREETING = {
    "QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 22}, "package": ""}, "capabilities": []}
}


class StandIn:
    """One QEMU. `answer` is called with each command after the negotiation."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._writers: list[asyncio.StreamWriter] = []
        self._one_at_a_time = asyncio.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send to the client that is served."""
        self._writers[-1].write(json.dumps(message).encode() + b"\r\n")

    def die(self) -> None:
        """Close the connection as the kernel does for a process that has ended."""
        self._writers[-1].close()

    async def _command(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """The next command; None at the end. Clients need not end lines: the JSON object itself has an end."""
        text = b""
        while byte := await reader.read(1):
            text += byte
            if byte == b"}":
                try:
                    return dict(json.loads(text))
                except ValueError:
                    continue
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._one_at_a_time:
            self._writers.append(writer)
            self.send(GREETING)
            try:
                while (command := await self._command(reader)) is not None:
                    if command["execute"] == "qmp_capabilities":
                        self.send({"return": {}})
                    else:
                        await self._answer(self, command)
            except ConnectionError:
                pass
            finally:
                writer.close()


@asynccontextmanager
async def served(path: Path, answer: Answer) -> AsyncIterator[StandIn]:
    stand_in = StandIn(answer)
    server = await asyncio.start_unix_server(stand_in.serve, path)
    try:
        yield stand_in
    finally:
        server.close()


async def echo(stand_in: StandIn, command: dict[str, Any]) -> None:
    stand_in.send({"return": command.get("arguments", {}), "id": command["id"]})


async def silence(stand_in: StandIn, command: dict[str, Any]) -> None:
    """No answer."""


async def refuse(stand_in: StandIn, command: dict[str, Any]) -> None:
    error = {"class": "DeviceNotFound", "desc": "Device 'x' not found"}
    stand_in.send({"error": error, "id": command["id"]})


async def end(stand_in: StandIn, command: dict[str, Any]) -> None:
    stand_in.die()


def ignored(event: QmpEvent) -> None:
    """No event matters."""


async def test_a_command_returns_what_qemu_returns(tmp_path: Path) -> None:
    async with served(tmp_path / "s", echo):
        connection = await qmp.connect(tmp_path / "s", ignored)
        assert await connection.execute("echo", {"id": "x"}) == {"id": "x"}
        assert not connection.is_closed
        await connection.close()
        assert connection.is_closed


async def test_what_qemu_refuses_has_its_class_and_names_the_command(tmp_path: Path) -> None:
    async with served(tmp_path / "s", refuse):
        connection = await qmp.connect(tmp_path / "s", ignored)
        with pytest.raises(QmpRefusedError, match="device_del: Device 'x' not found") as caught:
            await connection.execute("device_del", {"id": "x"})
        assert caught.value.error_class == "DeviceNotFound"
        await connection.close()


async def test_a_command_without_an_answer_may_have_taken_effect_and_the_connection_lives_on(
    tmp_path: Path,
) -> None:
    async with served(tmp_path / "s", silence):
        connection = await qmp.connect(tmp_path / "s", ignored)
        with pytest.raises(QmpError, match=r"stop: QEMU did not answer within 0\.01 s") as caught:
            await connection.execute("stop", deadline_s=0.01)
        assert type(caught.value) is QmpError
        assert not connection.is_closed
        await connection.close()


async def test_the_end_of_qemu_ends_a_command_and_wakes_those_who_wait_for_it(tmp_path: Path) -> None:
    async with served(tmp_path / "s", end):
        connection = await qmp.connect(tmp_path / "s", ignored)
        with pytest.raises(QmpClosedError):
            await connection.execute("device_add")
        await connection.closed()
        with pytest.raises(QmpClosedError, match="has closed the connection"):
            await connection.execute("query-status")
        await connection.close()


@pytest.mark.parametrize("is_left", [True, False], ids=["refused", "no file"])
async def test_that_nobody_listens_is_told_apart_from_a_qemu_that_does_not_greet(
    tmp_path: Path, is_left: bool
) -> None:
    path = tmp_path / "s"
    if is_left:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    with pytest.raises(QmpAbsentError, match="no QEMU answers there"):
        await qmp.connect(path, ignored)
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "busy"))
        busy.listen()
        with pytest.raises(QmpClosedError, match="no greeting") as caught:
            await qmp.connect(tmp_path / "busy", ignored, deadline_s=0.05)
    assert type(caught.value) is QmpClosedError


async def test_events_are_told_in_their_order(tmp_path: Path) -> None:
    told: list[QmpEvent] = []

    async def two_events(stand_in: StandIn, command: dict[str, Any]) -> None:
        for name, data in (("DEVICE_DELETED", {"device": "d1"}), ("RESUME", None)):
            extra = {} if data is None else {"data": data}
            stand_in.send({"event": name, "timestamp": {"seconds": 1, "microseconds": 2}, **extra})
        await echo(stand_in, command)

    async with served(tmp_path / "s", two_events):
        connection = await qmp.connect(tmp_path / "s", told.append)
        await connection.execute("echo")
        assert told == [QmpEvent("DEVICE_DELETED", {"device": "d1"}), QmpEvent("RESUME", {})]
        await connection.close()


async def test_a_second_client_is_told_that_the_first_is_served(tmp_path: Path) -> None:
    async with served(tmp_path / "s", echo):
        first = await qmp.connect(tmp_path / "s", ignored)
        with pytest.raises(QmpClosedError, match="QEMU may serve another client"):
            await qmp.connect(tmp_path / "s", ignored, deadline_s=0.05)
        await first.close()
        second = await qmp.connect(tmp_path / "s", ignored)
        await second.close()


@pytest.mark.parametrize("is_there", [False, True])
async def test_nobody_at_the_socket(tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        (tmp_path / "s").write_text("no socket")
    why = "connection refused" if is_there else "no such file or directory"
    with pytest.raises(QmpClosedError, match=f"no QEMU answers there: {why}"):
        await qmp.connect(tmp_path / "s", ignored)


async def test_somebody_who_is_no_qemu(tmp_path: Path) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(babble, tmp_path / "s")
    with pytest.raises(QmpClosedError, match="no QEMU answers there"):
        await qmp.connect(tmp_path / "s", ignored)
    server.close()
