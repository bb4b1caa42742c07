"""The peers of a runner, and how each kind of action is performed with them."""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import assert_never

from agent.core import events
from agent.core.model import Vm
from agent.core.ports import (
    BackendError,
    ExporterPeer,
    FencedOffError,
    Fencing,
    InformantPeer,
    NotNowError,
    PolicyPeer,
    ResizeRefusedError,
    SchedulerPeer,
    VmBackend,
)
from agent.core.timing import Timing
from hosting.signed_link import SignedLink
from protocol.values import Resources


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers of one runner. `policies` is None if no policy is in a process of its own, `signed` if the VM has no secret: else what its
    informant says must be signed by it."""

    backend: VmBackend
    scheduler: SchedulerPeer
    informant: InformantPeer
    exporter: ExporterPeer
    policies: PolicyPeer | None = None
    signed: SignedLink | None = None


class Performer:
    """Performs the actions of one runner, and keeps the proof of its fence."""

    def __init__(self, peers: Peers, timing: Timing, rng: random.Random) -> None:
        self._peers = peers
        self._timing = timing
        self._rng = rng
        self._fencing: Fencing | None = None

    async def perform(self, vm: Vm, started: events.Started) -> events.Event:
        """Perform one action. Every outcome is an event; only cancellation, and a fault of ours, passes through."""
        match started.action:
            case events.Fence() | events.Observe() | events.Resize():
                return await self._on_backend(vm, started.action)
            case events.RequestPermit(request):
                return await self._peers.scheduler.ask(vm, request)
            case events.Register():
                assert started.registration is not None
                return await self._peers.informant.register(started.registration)
            case events.AskDownscale(amount):
                return await self._peers.informant.ask_downscale(amount)
            case events.AnnounceUpscale(amount):
                return await self._peers.informant.announce_upscale(amount)
            case events.ReadMetrics(port):
                return await self._peers.exporter.read(vm, port)
            case events.AskPolicies(load, sizing):
                assert self._peers.policies is not None, "a policy that nobody can ask"
                return await self._peers.policies.ask(vm, load, sizing)
            case _:
                assert_never(started.action)

    async def _on_backend(
        self, vm: Vm, action: events.Fence | events.Observe | events.Resize
    ) -> events.Event:
        deadline_s = self._timing.backend_deadline_s
        if isinstance(action, events.Fence):
            deadline_s += self._timing.command_deadline_s  # a fence may have to wait it out
        try:
            async with asyncio.timeout(deadline_s):
                return await self._command(vm, action)
        except FencedOffError:
            return events.FencedOff()
        except ResizeRefusedError as error:
            return events.ResizeRefused(str(error), self._rng.random())
        except NotNowError as error:
            return events.ResizePostponed(str(error), self._rng.random())
        except (BackendError, TimeoutError) as error:
            text, chance = str(error) or f"no answer within {deadline_s:g} s", self._rng.random()
        match action:
            case events.Fence():
                return events.FenceFailed(text, chance)
            case events.Observe():
                return events.ObserveFailed(text, chance)
            case events.Resize():
                return events.ResizeFailed(text, chance)
            case _:
                assert_never(action)

    async def _is_fenced(self, vm: Vm, target: Resources) -> bool:
        """Whether this life may command the VM: the present target is repeated, which changes nothing. Raises `FencedOffError`."""
        assert self._fencing is not None
        not_after_s = time.monotonic() + self._timing.backend_deadline_s
        try:
            await self._peers.backend.resize(vm, target, self._fencing, seen=target, not_after_s=not_after_s)
        except FencedOffError:
            raise
        except BackendError:
            return False
        return True

    async def _command(self, vm: Vm, action: events.Fence | events.Observe | events.Resize) -> events.Event:
        backend = self._peers.backend
        match action:
            case events.Fence():
                self._fencing = await backend.fence(vm)
                return events.Fenced()
            case events.Observe(checks_fence):
                seen = await backend.observe(vm)
                is_fenced = checks_fence and await self._is_fenced(vm, seen.target)
                chance = self._rng.random() if seen.refusal is not None else 0.0
                return events.Observed(seen, chance, is_fenced)
            case events.Resize(target, seen, not_after_s):
                assert self._fencing is not None
                await backend.resize(vm, target, self._fencing, seen=seen, not_after_s=not_after_s)
                return events.ResizeAccepted()
            case _:
                assert_never(action)
