"""The runners of this node: one for each VM of the source, started, told of changes and ended as the source says; and the pages by which
their informants call them.

Starts are spread over the first seconds, so that a full node does not call all peers at once. The same name with another
UID gets another runner, and so does the same VM with another informant or other annotations.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias
from uuid import UUID

from agent.backends.factories import InstalledBackend
from agent.core import events
from agent.core.model import Vm
from agent.core.ports import VmChange, VmDescribed, VmDescription
from agent.core.state import RegistrationPhase
from agent.runner.runner import Runner
from hosting.logs import Logger
from hosting.server import Handler, HangUp, Reply, Request, Route, text
from hosting.supervisor import Supervisor
from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from protocol.sequence import SequenceSource
from protocol.texts import clean

SPREAD_S: Final = 2.0
"""The runners of a start begin within this time, if there are many."""
SPREAD_EACH_S: Final = 0.01
GOODBYE_S: Final = 1.0


@dataclass(eq=False, slots=True)
class Fleet:
    """Owns the runners. `make` builds a runner, `vm_of` the VM that a runner is told of when its description changes;
    `installed` is prepared for each VM, and forgets it."""

    make: Callable[[VmDescription], Runner]
    vm_of: Callable[[VmDescription], Vm]
    installed: InstalledBackend
    supervisor: Supervisor
    log: Logger
    rng: random.Random
    _wanted: dict[str, VmDescription] = field(default_factory=dict, init=False)
    _running: dict[str, VmDescription] = field(default_factory=dict, init=False)
    _runners: dict[str, Runner] = field(default_factory=dict, init=False)

    def runners(self) -> list[Runner]:
        """Every runner, in the order of their start."""
        return list(self._runners.values())

    def find(self, name: str) -> Runner | None:
        return self._runners.get(name)

    async def apply(self, changes: Iterable[VmChange]) -> None:
        """Bring the runners in line with the changes of a source.

        Raises `BackendError` if a new VM's state cannot be read; the next call tries that VM again.
        """
        for change in changes:
            if isinstance(change, VmDescribed):
                self._wanted[change.spec.vm.name] = change.spec
            else:
                self._wanted.pop(change.name, None)
        wanted = self._wanted
        gone = [name for name, spec in self._running.items() if not _is_same(wanted.get(name), spec)]
        await asyncio.gather(*(self._end(name) for name in gone))
        new = [spec for name, spec in wanted.items() if name not in self._running]
        for spec in new:
            self.installed.prepare(spec)
        spread_s = min(SPREAD_S, SPREAD_EACH_S * len(new)) if len(new) > 1 else 0.0
        for spec in new:
            self._start(spec, self.rng.random() * spread_s)
        for name, spec in wanted.items():
            before, self._running[name] = self._running[name], spec
            if before.containers != spec.containers:
                self._runners[name].look_now()
            if replace(before, containers=()) != replace(spec, containers=()):
                self._runners[name].change(self.vm_of(spec))
                self.log.info("VM changed", vm=name)

    def moved(self, name: str) -> None:
        """The back end tells that a VM has moved, or is out of reach."""
        if (runner := self._runners.get(name)) is not None:
            runner.look_now()

    async def close(self) -> None:
        """End every runner and say good-bye to their informants."""
        await self.supervisor.stop()
        await asyncio.gather(*(runner.goodbye(GOODBYE_S) for runner in self.runners()))

    def _start(self, spec: VmDescription, delay_s: float) -> None:
        runner = self.make(spec)
        name = runner.vm.name
        self._running[name], self._runners[name] = spec, runner
        first = [delay_s]

        async def run() -> None:
            await asyncio.sleep(first.pop() if first else 0.0)
            await runner.run()

        self.supervisor.start(name, run)

    async def _end(self, name: str) -> None:
        runner = self._runners.pop(name)
        del self._running[name]
        await self.supervisor.end(name)
        await runner.goodbye(GOODBYE_S)
        if self.installed.machines is not None:
            await self.installed.machines.forget(name)
        self.log.info("VM is not ours any more", vm=name)


def _is_same(wanted: VmDescription | None, running: VmDescription) -> bool:
    """Whether one runner serves both descriptions: the VM, the ways to it and its annotations are the same."""
    return wanted is not None and _identity(wanted) == _identity(running)


def _identity(spec: VmDescription) -> tuple[object, ...]:
    return spec.vm.pod_uid, spec.informant_url, spec.annotations, spec.qmp


MAX_WHY: Final = 300
"""Characters of an informant's reason for a wish; a longer one is cut."""

_Message: TypeAlias = wire.Empty | wire.ResumeAgent | wire.SuspendAgent | wire.MoreResourcesRequest


@dataclass(slots=True)
class _Sequence:
    registration: UUID
    source: SequenceSource = field(default_factory=SequenceSource)


class Callbacks:
    """The pages that informants call: `/agents/{agent_id}/id`, `/resume`, `/suspend`, `/try-upscale`, one port for all VMs. Finds the runner
    that a call is for, hands the event to it, and answers.

    The ID in the path and the `expectedID` of the body must both be the ID of the registration in force, else 404 as from a published
    agent. Every good answer carries the next number of that registration's sequence. Source: reference/neon.md 1.1, 1.4 and 1.5.
    """

    def __init__(self, runners: Callable[[], list[Runner]]) -> None:
        self._runners = runners
        self._known: dict[str, Runner] = {}
        """Runners by registration, as of the last search through all runners."""
        self._sequences: dict[str, _Sequence] = {}

    def routes(self) -> tuple[Route, ...]:
        """The four routes. `GET /id` comes with a body as the others do: `{}`."""
        return (
            Route("GET", "/agents/{agent_id}/id", self._serving(wire.Empty), 1024),
            Route("POST", "/agents/{agent_id}/resume", self._serving(wire.ResumeAgent), 1024),
            Route("POST", "/agents/{agent_id}/suspend", self._serving(wire.SuspendAgent), 1024),
            Route("POST", "/agents/{agent_id}/try-upscale", self._serving(wire.MoreResourcesRequest), 2048),
        )

    def _serving(self, kind: type[_Message]) -> Handler:
        async def serve(request: Request) -> Reply | HangUp:
            return self._call(request, kind)

        return serve

    def _find(self, agent_id: str) -> tuple[Runner, UUID] | None:
        agent_id, runners = agent_id.lower(), self._runners()
        for is_new in (False, True):
            if is_new:  # registered since, or unknown
                self._known = {str(each.state.informant.registration): each for each in runners}
            runner = self._known.get(agent_id)
            if runner is None or runner not in runners or runner.state.superseded_at_ms is not None:
                continue  # dormant: the agent that superseded it is the one to talk to
            registration = runner.state.informant.registration
            if registration is not None and str(registration) == agent_id:
                return runner, registration
        return None

    def _call(self, request: Request, kind: type[_Message]) -> Reply | HangUp:
        try:
            message = codec.decode(kind, request.body)
        except RemoteProtocolError as error:
            return text(error.status, str(error))
        found = self._find(request.parameters["agent_id"])
        if found is None or (not isinstance(message, wire.Empty) and message.expected_id != found[1]):
            return text(404, "no agent with this ID")
        runner, registration = found
        match message:
            case wire.Empty():
                return self._offer(runner, registration, events.InformantHeard(registration))
            case wire.ResumeAgent():
                return self._offer(runner, registration, events.Resumed(registration))
            case wire.SuspendAgent():
                return self._offer(runner, registration, events.Suspended(registration))
            case wire.MoreResourcesRequest():
                link = runner.state.informant
                if link.version is not None and not link.version.has_try_upscale():
                    return text(400, f"/try-upscale is not part of {link.version}")
                if link.phase is RegistrationPhase.SUSPENDED:
                    return text(400, "this agent is suspended")
                why = clean(message.why, MAX_WHY)
                event = events.TryUpscaleReceived(registration, message.more_resources(), why)
                return self._offer(runner, registration, event)

    def _offer(self, runner: Runner, registration: UUID, event: events.Event) -> Reply | HangUp:
        """Hand the event to the runner; the answer carries the next number."""
        if not runner.offer(event):
            return text(503, "this VM's runner has fallen behind")
        known = self._sequences.get(runner.vm.name)
        if known is None or known.registration != registration:
            known = self._sequences[runner.vm.name] = _Sequence(registration)
        known.source = known.source.next()
        message = wire.AgentMessage(wire.AgentIdentification(registration), known.source.last)
        return Reply(200, codec.encode(message))
