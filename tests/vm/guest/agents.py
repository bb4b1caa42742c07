"""An agent of one guest: a published agent's server towards the informant, whose sizes the test decides on."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from labs.vms.machine import INFORMANT_PORT
from tests.peers.agent_server import AgentKnobs, CallbackServer
from tests.peers.gojson import DOWNSCALE_RESULT, Message, binary_quantity, decode
from tests.peers.recording import JSON, Answer, Caller, Fault, Journal, Request
from tests.peers.resources import Wish
from tests.peers.support import agent_knobs
from tests.support.waiting import until

HOST_IN_GUEST = "10.0.2.2"
"""How a guest reaches the loopback interface of its host."""
ANSWER_S = 30.0
"""How long a call to the informant may take: no test asserts how long one takes."""
REGISTER_S = 5.0
"""A registration is tried again after so long: the host takes connections while nobody listens in the guest."""


class _Server(CallbackServer):
    """Tells the informant the address at which the guest reaches this host, and answers nothing while its owner is stopped."""

    def __init__(self, agent: "GuestAgent") -> None:
        super().__init__(agent)
        self._agent = agent

    @property
    def desc(self) -> Message:
        return {**super().desc, "agentServeAddr": f"{HOST_IN_GUEST}:{self.server.port}"}

    async def _handle(self, request: Request) -> Answer:
        await until(lambda: not self._agent.is_stopped)
        return await super()._handle(request)


@dataclass(slots=True)
class GuestAgent:
    """Registers with the guest's informant, notes what is wished for, and says which sizes the VM has.

    While it `is_stopped`, its server takes connections and answers nothing, as a process that was sent SIGSTOP.
    """

    address: str
    wishes: list[Wish] = field(default_factory=list)
    is_stopped: bool = False
    host: str = "127.0.0.1"
    knobs: AgentKnobs = field(default_factory=lambda: agent_knobs(register_timeout=REGISTER_S))
    journal: Journal = field(default_factory=Journal)
    faults: list[Fault] = field(default_factory=list)
    caller: Caller = field(init=False)
    informant: str = field(init=False)
    server: _Server | None = None

    def __post_init__(self) -> None:
        self.caller = Caller(self.journal, content_type=JSON, redirects=True)
        self.informant = f"{self.address}:{INFORMANT_PORT}"

    def informant_changed(self) -> None:
        """A state of the server has changed; whoever waits for one looks at it."""

    def upscale_wanted(self, wish: Wish) -> None:
        self.wishes.append(wish)

    async def register(self) -> None:
        """Be the agent in use, under a new ID, as one that was started again. An informant that does not answer yet is waited for."""
        await self._die()
        self.server = server = _Server(self)
        await server.start()
        await until(lambda: server.mode in ("running", "exited"))
        assert server.mode == "running", self.journal.noted("mode")

    async def _die(self) -> None:
        if self.server is not None:
            self.server.exit("killed", retry_should_fix=False)
            await self.server.die()
            self.server = None

    async def hears_a_wish(self, resource: Literal["cpu", "memory"]) -> int:
        """Return when more of a resource was wished for since the agent was last told of none; how many deliveries there were until then."""
        await until(lambda: self.wishes and getattr(self.wishes[-1], resource))
        return len(self.wishes)

    def wished_since(self, number: int, resource: Literal["cpu", "memory"]) -> int:
        """How many of the later deliveries ask for a resource."""
        return sum(getattr(wish, resource) for wish in self.wishes[number:])

    def wishes_begun(self, resource: Literal["cpu", "memory"]) -> int:
        """How many wishes for a resource there were, however often each was delivered."""
        asked = [False, *(getattr(wish, resource) for wish in self.wishes)]
        return sum(now and not before for before, now in pairwise(asked))

    async def upscale(self, vcpu_milli: int, memory_bytes: int) -> None:
        """The VM has this size now, or soon."""
        status, answer = await self._ask("/upscale", vcpu_milli, memory_bytes)
        assert status == 200, answer

    async def downscale(self, vcpu_milli: int, memory_bytes: int) -> tuple[bool, str]:
        """Whether the guest agrees to a smaller size, and why not."""
        status, answer = await self._ask("/downscale", vcpu_milli, memory_bytes)
        assert status == 200, answer
        result = decode(DOWNSCALE_RESULT, answer)
        return result["Ok"], result["Status"]

    async def _ask(self, path: str, vcpu_milli: int, memory_bytes: int) -> tuple[int, bytes]:
        body = f'{{"cpu": "{vcpu_milli}m", "memory": "{binary_quantity(memory_bytes)}"}}'.encode()
        return await self.caller.call("PUT", f"http://{self.informant}{path}", body, ANSWER_S)

    async def close(self) -> None:
        self.is_stopped = False
        await self._die()
        await self.caller.close()
