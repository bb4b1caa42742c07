"""The published agent's side towards one informant: its own server, one life of it per agent ID."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal, Protocol
from uuid import uuid4

from tests.peers.gojson import (
    AGENT_DESC,
    AGENT_IDENTIFICATION_MESSAGE,
    EMPTY,
    EXPECTED_ID,
    INFORMANT_DESC,
    MORE_RESOURCES_REQUEST,
    RAW_RESOURCES,
    BadJSONError,
    Message,
    decode,
    encode,
)
from tests.peers.recording import (
    Answer,
    Caller,
    Fault,
    Journal,
    RecordingServer,
    Request,
    UnansweredError,
    cancel,
)
from tests.peers.resources import Resources, Wish

METHODS = {"/id": "GET", "/resume": "POST", "/suspend": "POST", "/try-upscale": "POST"}
Mode = Literal["unconfirmed", "suspended", "running", "exited"]


@dataclass(slots=True)
class AgentKnobs:
    """Settings of the peer; the defaults are the published values (a time of 0 does not wait)."""

    plugin_version: int = 2
    informant_versions: tuple[int, int] = (1, 2)
    slot: str = "1Gi"
    load_prefix: str = "host_"
    request_timeout: float = 10.0  # to the scheduler; the setting of that name is not used
    register_timeout: float = 2.0
    register_retry: float = 5.0
    server_min_wait: float = 5.0
    server_normal_wait: float = 5.0
    downscale_timeout: float = 2.0  # of /upscale as well
    metrics_period: float = 5.0
    metrics_timeout: float = 2.0
    metrics_min_wait: float = 1.0
    scheduler_min_wait: float = 5.0
    watchdog: float = 5.0  # a request lock held longer kills the runner …
    own_lock_watchdog: float = 0.3  # … as the runner's own one does, held for ever after an invalid permit
    sequence_numbers: list[int] = field(default_factory=list)  # sent first, in place of the right ones
    wrong_id: str | None = None  # answered in place of its own


class Owner(Protocol):
    """The runner as its server needs it."""

    knobs: AgentKnobs
    journal: Journal
    faults: list[Fault]
    informant: str
    caller: Caller
    host: str

    def informant_changed(self) -> None: ...
    def upscale_wanted(self, wish: Wish) -> None: ...


class InformantUnusableError(Exception):
    """The informant cannot be asked now, or did not answer as it should."""


class CallbackServer:
    """One agent ID: registers, answers the informant, and ends at the first violation."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.id = str(uuid4())
        self.mode: Mode = "unconfirmed"
        self.version = 0
        self.metrics_port = 0
        self.sequence = 0
        self.contact = False
        self.asked_for_id = False
        self.exited: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.server = RecordingServer(self._handle, owner.journal, owner.faults, owner.host)
        self._lock = asyncio.Lock()
        self._registering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.server.start()
        self._registering = asyncio.create_task(self._register())
        self.owner.journal.note("agent server", id=self.id, address=self.server.address)

    @property
    def desc(self) -> Message:
        low, high = self.owner.knobs.informant_versions
        return {
            "agentID": self.id,
            "agentServeAddr": self.server.address,
            "minProtoVersion": low,
            "maxProtoVersion": high,
        }

    def exit(self, why: str, *, retry_should_fix: bool) -> None:
        if self.mode == "exited":
            return
        self._set_mode("exited", why)
        if not self.exited.done():
            self.exited.set_result(retry_should_fix)

    def _set_mode(self, mode: Mode, why: str) -> None:
        self.mode = mode
        self.owner.journal.note("mode", id=self.id, mode=mode, why=why)
        self.owner.informant_changed()

    async def close(self) -> None:
        """After an exit: say goodbye if a status was ever seen. A register that timed out is an orphan there."""
        await cancel(self._registering)
        if self.contact:
            try:
                body, limit = encode(AGENT_DESC, self.desc), self.owner.knobs.register_timeout
                await self.owner.caller.call("DELETE", self._url("/unregister"), body, limit)
            except UnansweredError:
                pass
        await self.server.stop()

    async def die(self) -> None:
        """The process ends: nobody is told."""
        await cancel(self._registering)
        self.mode = "exited"
        await self.server.die()

    def _url(self, path: str) -> str:
        return f"http://{self.owner.informant}{path}"

    # Towards the informant.

    async def _register(self) -> None:
        body, knobs = encode(AGENT_DESC, self.desc), self.owner.knobs
        while True:
            try:
                status, answer = await self.owner.caller.call(
                    "POST", self._url("/register"), body, knobs.register_timeout
                )
            except UnansweredError:
                await asyncio.sleep(knobs.register_retry)
                continue
            self.contact = True
            if status != 200:
                self.exit(f"/register: status {status}", retry_should_fix=False)
                return
            if self._accept(answer):
                return
            await asyncio.sleep(knobs.register_retry)  # with the same ID, so to a 409

    def _accept(self, answer: bytes) -> bool:
        low, high = self.owner.knobs.informant_versions
        try:
            desc = decode(INFORMANT_DESC, answer)
        except BadJSONError:
            return False
        prometheus = desc["metricsMethod"]["prometheus"]
        if not low <= desc["protoVersion"] <= high or prometheus is None:
            self.owner.journal.note("invalid InformantDesc", answer=answer)
            return False
        if self.mode != "unconfirmed":
            return True
        if not self.asked_for_id:
            self.exit("registered without a look at /id", retry_should_fix=True)
            return True
        self.version, self.metrics_port = desc["protoVersion"], prometheus["port"]
        self._set_mode("suspended", "registered")
        return True

    async def ask(self, path: str, resources: Resources) -> bytes:
        """`PUT /downscale` or `/upscale`; only a running server may."""
        if self.mode != "running":
            raise InformantUnusableError(f"informant server is {self.mode}")
        async with self._lock:
            try:
                knobs = self.owner.knobs
                body = encode(RAW_RESOURCES, resources.raw(knobs.slot))
                status, answer = await self.owner.caller.call(
                    "PUT", self._url(path), body, knobs.downscale_timeout
                )
            except UnansweredError as fault:
                raise InformantUnusableError(str(fault)) from fault
        if status != 200:
            self.exit(f"{path}: status {status}", retry_should_fix=status == 404)
            raise InformantUnusableError(f"{path}: status {status}")
        return answer

    # What the informant asks.

    async def _handle(self, request: Request) -> Answer:
        method = METHODS.get(request.path)
        if method is None:
            return Answer(404, b"404 page not found\n")
        if request.method != method:
            return Answer(405, f"request method must be {method}".encode())
        kind = {"/id": EMPTY, "/try-upscale": MORE_RESOURCES_REQUEST}.get(request.path, EXPECTED_ID)
        try:
            message = decode(kind, request.body)  # on every method: a GET without a body is refused
        except BadJSONError:
            return Answer(400, b"bad JSON")
        if request.path != "/id" and message["expectedID"] != self.id:
            return Answer(404, f"agent ID is {self.id}, not {message['expectedID']}".encode())
        if self.mode == "exited":
            return Answer(404, b"server has already exited")
        return self._obey(request.path, message)

    def _obey(self, path: str, message: Message) -> Answer:
        if path == "/id":
            self.asked_for_id = True
        elif path == "/try-upscale":
            if self.version == 1:
                return Answer(400, b"/try-upscale is not in protocol version v1.0")
            if self.mode != "running":
                return self._violation(path)
            self.owner.upscale_wanted(Wish(message["cpu"], message["memory"]))
        else:
            before, after = ("suspended", "running") if path == "/resume" else ("running", "suspended")
            if self.mode != before:
                return self._violation(path)
            self._set_mode("running" if after == "running" else "suspended", path)
        return self._identify()

    def _violation(self, path: str) -> Answer:
        mode = self.mode
        self.exit(f"{path} while {mode}", retry_should_fix=True)
        return Answer(400, f"cannot {path} while {mode}".encode())

    def _identify(self) -> Answer:
        self.sequence += 1
        wrong = self.owner.knobs.sequence_numbers
        message = {
            "data": {"agentID": self.owner.knobs.wrong_id or self.id},
            "sequenceNumber": wrong.pop(0) if wrong else self.sequence,
        }
        return Answer(200, encode(AGENT_IDENTIFICATION_MESSAGE, message))
