"""The guest's machine over HTTP: `GET /machine` and `PUT /machine` of its informant."""

from typing import Final

from agent.backends.qemu.ports import GuestSilentError, GuestUnableError
from hosting.client import Answered, HttpClient
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.informant_pages import GuestMachine, MachineOrder
from protocol.texts import clean

READ_DEADLINE_S: Final = 1.0
"""A guest under load answers within 0.2 s."""
ORDER_DEADLINE_S: Final = 10.0
"""Under emulation a vCPU comes online in 0.3 s, in a guest that has no time for it in 1.8 s."""
REASON_CHARS: Final = 200
UNABLE: Final = (400, 501)


class InformantMachine:
    """The `GuestPort` of the informant at `url`."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client = client
        self._url = f"{url.rstrip('/')}/machine"

    async def read(self) -> GuestMachine:
        return await self._call("GET", READ_DEADLINE_S, None, (200,))

    async def order(self, order: MachineOrder) -> GuestMachine:
        return await self._call("PUT", ORDER_DEADLINE_S, codec.encode(order), (200, 409))

    async def _call(
        self, method: str, deadline_s: float, body: bytes | None, statuses: tuple[int, ...]
    ) -> GuestMachine:
        outcome = await self._client.call(method, self._url, deadline_s=deadline_s, body=body)
        if not isinstance(outcome, Answered):
            raise GuestSilentError(outcome.message)
        if outcome.status == 404:
            raise GuestUnableError("its informant knows no /machine")
        if outcome.status not in statuses:
            told = f"status {outcome.status}: {clean(outcome.body.decode(errors='replace'), REASON_CHARS)}"
            raise GuestUnableError(told) if outcome.status in UNABLE else GuestSilentError(told)
        try:
            return codec.decode(GuestMachine, outcome.body)
        except RemoteProtocolError as error:
            raise GuestSilentError(clean(str(error), REASON_CHARS)) from None
