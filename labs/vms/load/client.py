"""The knob of a guest's load from outside: the demo and the tests set the load with it."""

import json

import msgspec

from hosting.client import Answered, HttpClient
from labs.vms.load.messages import LoadReport, LoadSetting
from labs.vms.load.plan import GuestLoad

DEADLINE_S = 5.0
"""A guest whose CPUs are all busy answers within a second."""


class LoadError(Exception):
    """The load generator did not answer, or not as it should. The text is for a person."""


class LoadClient:
    """Calls the load generator at `address`, HOST:PORT."""

    def __init__(self, http: HttpClient, address: str) -> None:
        self._http = http
        self._url = f"http://{address}/load"

    async def set(self, load: GuestLoad) -> LoadReport:
        """Let the guest use `load` from now on. Raises `LoadError`."""
        setting = LoadSetting.of(load).model_dump(by_alias=True)
        return await self._call("PUT", json.dumps(setting).encode())

    async def read(self) -> LoadReport:
        """The load and use of the guest. Raises `LoadError`."""
        return await self._call("GET")

    async def _call(self, method: str, body: bytes | None = None) -> LoadReport:
        match await self._http.call(method, self._url, deadline_s=DEADLINE_S, body=body):
            case Answered(200, answer):
                try:
                    return msgspec.json.decode(answer, type=LoadReport)
                except msgspec.DecodeError as error:
                    raise LoadError(f"{self._url}: not a report of load: {error}") from None
            case Answered(status, answer):
                raise LoadError(f"{self._url}: status {status}: {answer.decode(errors='replace').strip()}")
            case failed:
                raise LoadError(f"{self._url}: {failed.message}")
