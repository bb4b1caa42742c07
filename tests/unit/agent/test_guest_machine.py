"""The machine of a guest over HTTP, as its informant shows and switches it."""

import json

import pytest

from agent.backends.qemu.reading import GuestSilentError, GuestUnableError, InformantMachine
from hosting.client import HttpClient
from hosting.server import Reply, Request
from protocol.informant_pages import GuestMachine, MachineOrder
from tests.support.servers import answering

SHOWN = GuestMachine(7, 2, 1, 2**29, 2**27)
BODY = json.dumps(
    {
        "generation": 7,
        "presentCPUs": 2,
        "onlineCPUs": 1,
        "memoryOnlineBytes": 2**29,
        "memoryBlockBytes": 2**27,
    }
).encode()


async def asked(reply: Reply, order: MachineOrder | None = None) -> tuple[GuestMachine, Request]:
    """The guest's machine as read from this answer of its informant, and the request that the informant got."""
    got: list[Request] = []

    async def answer(request: Request) -> Reply:
        got.append(request)
        return reply

    async with answering(answer) as url, HttpClient() as client:
        machine = InformantMachine(client, f"{url}/")
        return (await machine.read() if order is None else await machine.order(order)), got[0]


async def test_a_machine_is_read() -> None:
    shown, request = await asked(Reply(200, BODY))
    assert (shown, request.method, request.path) == (SHOWN, "GET", "/machine")


@pytest.mark.parametrize("status", [200, 409])
async def test_an_order_shows_the_machine_afterwards_also_where_a_later_life_commands(status: int) -> None:
    shown, request = await asked(Reply(status, BODY), MachineOrder(6, 2, 3))
    assert (shown, request.method, request.path) == (SHOWN, "PUT", "/machine")
    assert json.loads(request.body) == {"generation": 6, "onlineCPUs": 2, "sequenceNumber": 3}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(404, b"nothing here"), "its informant knows no /machine"),
        (
            Reply(501, b"CPUs cannot be switched here:\n no file"),
            "status 501: CPUs cannot be switched here: no file",
        ),
        (Reply(409, BODY), "status 409"),
        (Reply(200, b"{}"), "generation"),
        (Reply(200, BODY.replace(b'"onlineCPUs": 1', b'"onlineCPUs": 0')), "onlineCPUs"),
    ],
)
async def test_what_is_no_machine_is_silence_with_its_reason(reply: Reply, told: str) -> None:
    with pytest.raises(GuestSilentError, match=told):
        await asked(reply)


@pytest.mark.parametrize(
    ("status", "is_unable"), [(400, True), (404, True), (501, True), (500, False), (503, False)]
)
async def test_an_order_that_has_no_effect_is_told_from_one_that_may_have(
    status: int, is_unable: bool
) -> None:
    with pytest.raises(GuestSilentError) as caught:
        await asked(Reply(status, b"no"), MachineOrder(6, 2))
    assert isinstance(caught.value, GuestUnableError) == is_unable


async def test_nobody_there_is_silence() -> None:
    async with HttpClient() as client:
        with pytest.raises(GuestSilentError, match="connection refused"):
            await InformantMachine(client, "http://127.0.0.1:1").read()
