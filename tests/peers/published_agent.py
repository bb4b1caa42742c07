"""An autoscaler-agent's runner of one VM as published (v1.0 and v1.1), quirks and defects included."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.peers.agent_server import AgentKnobs, CallbackServer, InformantUnusableError
from tests.peers.gojson import (
    AGENT_REQUEST,
    DOWNSCALE_RESULT,
    PLUGIN_RESPONSE,
    BadJSONError,
    Message,
    decode,
    encode,
)
from tests.peers.recording import (
    JSON,
    Caller,
    Fault,
    Journal,
    UnansweredError,
    cancel,
)
from tests.peers.resources import Resources, Wish, published_target, read_metrics


@dataclass(slots=True)
class VM:
    """The VM object: what a restarted agent reads again."""

    low: Resources
    high: Resources
    use: Resources
    namespace: str = "default"
    name: str = "vm"
    patches: list[Resources] = field(default_factory=list)
    patch_fails: bool = False
    on_patch: Callable[[Resources], None] | None = None


@dataclass(slots=True, eq=False)
class _Scheduler:
    """One scheduler pod as the runner sees it."""

    address: str
    registered: bool = False
    fatal: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RunnerPanicError(Exception):
    """The runner ends, and nobody starts it again."""


class PublishedAgent:
    """The runner of one VM between its informant and the scheduler."""

    def __init__(
        self,
        vm: VM,
        informant: str,
        knobs: AgentKnobs | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        self.vm = vm
        self.informant = informant
        self.knobs = knobs or AgentKnobs()
        self.host = host
        self.journal = Journal()
        self.faults: list[Fault] = []  # of its own server
        self.caller = Caller(self.journal, content_type=JSON, redirects=True)
        self._forget()

    def _forget(self) -> None:
        self.server: CallbackServer | None = None
        self.scheduler: _Scheduler | None = None
        self.unit: Resources | None = None
        self.last_approved: Resources | None = None
        self.metrics: Message | None = None
        self.wish = Wish()
        self.use = self.vm.use
        self.bounds = self.vm.low, self.vm.high  # read once: later changes are not seen
        self.panicked: str | None = None
        self.deadlocked = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._last_connection: float | None = None
        self._update_wanted = asyncio.Event()
        self._informant_changed = asyncio.Event()
        self._metrics_came = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def mode(self) -> str:
        return self.server.mode if self.server else "none"

    async def start(self, scheduler: str | None = None) -> None:
        self._forget()
        for work in (self._serve_informant(), self._fetch_metrics(), self._scale()):
            _ = self._spawn(work)
        self.journal.note("started", pod=f"{self.vm.namespace}/{self.vm.name}", use=str(self.use))
        if scheduler is not None:
            self.set_scheduler(scheduler)

    async def stop(self) -> None:
        """The process ends: v0.1.13 says nothing to anybody."""
        await cancel(*self._tasks)
        if self._watch is not None:
            self._watch.cancel()
        if self.server is not None:
            await self.server.die()
        await self.caller.close()

    die = stop

    async def restart(self, scheduler: str | None = None) -> None:
        """A new process: new IDs and ports; the last permit is forgotten."""
        await self.stop()
        await self.start(scheduler)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except Exception as fault:  # noqa: BLE001 - a panic in any task ends the runner, as published
                self.panic(f"{type(fault).__name__}: {fault}")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def panic(self, why: str) -> None:
        if self.panicked is not None:
            return
        self.panicked = why
        self.journal.note("panicked", why=why)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self.server is not None:
            ending = asyncio.create_task(self.server.die())
            self._tasks.add(ending)

    # The informant.

    async def _serve_informant(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            server = self.server = CallbackServer(self)
            await server.start()
            retry_should_fix = await server.exited
            await server.close()
            wait = 0.0 if retry_should_fix else self.knobs.server_normal_wait
            await asyncio.sleep(max(wait, self.knobs.server_min_wait - (loop.time() - started)))

    def informant_changed(self) -> None:
        self._informant_changed.set()

    def upscale_wanted(self, wish: Wish) -> None:
        """Both false takes an earlier wish back."""
        self.wish = wish
        self.journal.note("wish", cpu=wish.cpu, memory=wish.memory)
        self._update_wanted.set()

    async def _fetch_metrics(self) -> None:
        """Only of a running informant; nothing is sent to the scheduler without them."""
        while True:
            self._informant_changed.clear()
            server = self.server
            if server is not None and server.mode == "running":
                await self._fetch(server)
                await asyncio.sleep(self.knobs.metrics_min_wait)
            rest = self.knobs.metrics_period - self.knobs.metrics_min_wait
            try:
                async with asyncio.timeout(max(rest, 0.001)):
                    await self._informant_changed.wait()
            except TimeoutError:
                pass

    async def _fetch(self, server: CallbackServer) -> None:
        url = f"http://{self.informant.rpartition(':')[0]}:{server.metrics_port}/metrics"
        try:
            status, page = await self.caller.call("GET", url, None, self.knobs.metrics_timeout)
            if status == 200:
                self.metrics = read_metrics(page.decode("utf-8", "replace"), self.knobs.load_prefix)
                self._metrics_came.set()
                self._update_wanted.set()
        except (UnansweredError, BadJSONError) as fault:
            self.journal.note("no metrics", why=str(fault))

    # The scheduler.

    def set_scheduler(self, address: str | None) -> None:
        """A scheduler pod became ready, or (None) the current one is gone: unit and last permit stay."""
        if self._connecting is not None:
            self._connecting.cancel()
        self.scheduler = None
        if address is not None:
            self._connecting = self._spawn(self._connect(_Scheduler(address)))

    async def _connect(self, scheduler: _Scheduler) -> None:
        loop = asyncio.get_running_loop()
        if self._last_connection is not None:
            await asyncio.sleep(self.knobs.scheduler_min_wait - (loop.time() - self._last_connection))
        self._last_connection = loop.time()
        if self.knobs.plugin_version == 1:  # v1.0 knows no null metrics
            await self._metrics_came.wait()
        self.scheduler = scheduler
        async with scheduler.lock:
            await self._request(scheduler, self.use)
        if self.unit is None:
            self.journal.note("asks no more", why="the first request failed")  # until there is another pod
        self._update_wanted.set()

    def _watch_lock(self, name: str, limit: float) -> asyncio.TimerHandle:
        """The deadlock checker: a lock that is held for too long kills the runner."""
        why = f"deadlock checker: {name} lock held too long"
        self._watch = asyncio.get_running_loop().call_later(limit, self.panic, why)
        return self._watch

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watch = self._watch_lock("request", self.knobs.watchdog)
        try:
            yield
        finally:
            watch.cancel()

    async def _request(self, scheduler: _Scheduler, asked: Resources) -> Resources | None:
        """One AgentRequest; the caller holds the scheduler's lock. Any answer but 200 is fatal."""
        with self._watched():
            message = {
                "protoVersion": self.knobs.plugin_version,
                "pod": {"name": self.vm.name, "namespace": self.vm.namespace},
                "resources": asked.message(),
                "metrics": self.metrics,
            }
            try:
                body = encode(AGENT_REQUEST, message)
                status, answer = await self.caller.call(
                    "POST", f"http://{scheduler.address}/", body, self.knobs.request_timeout
                )
                found = decode(PLUGIN_RESPONSE, answer) if status == 200 else None
            except (UnansweredError, BadJSONError) as fault:
                self.last_approved = self.use
                self.journal.note("scheduler failed", why=str(fault))
                return None
            if found is None:
                self.last_approved = self.use
                self._give_up(scheduler, f"status {status}")
                return None
            return self._accept(scheduler, asked, found)

    def _give_up(self, scheduler: _Scheduler, why: str) -> None:
        scheduler.fatal = True  # a signal to look for another one exists, and is never sent
        self.journal.note("scheduler fatal", why=why)

    def _accept(self, scheduler: _Scheduler, asked: Resources, found: Message) -> Resources | None:
        if found["migrate"] is not None:
            raise RunnerPanicError("migration is unimplemented")
        permit, unit = Resources.read(found["permit"]), Resources.read(found["resourceUnit"])
        zero = 0 in permit or 0 in unit
        if zero or permit.any_greater(asked) or permit.any_less(self.use):
            self.deadlocked = True  # the report of it takes the lock that is held, the runner's own
            self._watch_lock("own", self.knobs.own_lock_watchdog)
            self._give_up(
                scheduler, f"invalid permit {permit} (unit {unit}) for {asked} with {self.use} in use"
            )
            return None
        self.unit, self.last_approved = unit, permit
        scheduler.registered = True
        self.journal.note("permit", permit=str(permit), asked=str(asked), unit=str(unit))
        return permit

    # Scaling.

    async def _scale(self) -> None:
        while True:
            await self._update_wanted.wait()
            self._update_wanted.clear()
            await self._update()

    def _target(self, use: Resources, *, may_decrease: bool = True) -> Resources:
        assert self.unit is not None
        assert self.metrics is not None
        load = self.metrics["loadAvg1M"]
        return published_target(use, self.unit, self.bounds, load, self.wish, may_decrease=may_decrease)

    async def _update(self) -> None:
        """One scaling update (reference 3.3)."""
        for _ in range(2):
            fatal = self.scheduler is not None and self.scheduler.fatal
            if self.metrics is None or self.unit is None or self.last_approved is None or fatal:
                return
            unit, current = self.unit, self.use
            target = self._target(current)
            capped = target.lower(self.last_approved)
            if capped != current:
                self.use = current.upper(capped)  # a new scheduler is told the higher value meanwhile
                refused = await self._change_vm(current, capped)
                if refused is None:
                    self.use = current
                    return
                target = refused if refused != capped else target
            if self.scheduler is None:
                return
            if self.unit == unit:
                await self._negotiate(self.scheduler, target)
                return

    async def _negotiate(self, scheduler: _Scheduler, target: Resources) -> None:
        async with scheduler.lock:
            if scheduler is not self.scheduler:
                return
            if not scheduler.registered and await self._request(scheduler, self.use) is None:
                return
            permit = await self._request(scheduler, target)
        if permit is not None and permit != self.use:
            await self._change_vm(self.use, permit)

    async def _change_vm(self, current: Resources, target: Resources) -> Resources | None:
        """Bring the VM to the target; None: the informant is unusable.

        The answer is what the scheduler is to be asked for after a refusal, else the target.
        """
        ask = target
        if target.any_less(current):
            granted = await self._downscale(target.lower(current))
            if granted is None:
                return None
            if not granted:
                ask = self._target(current, may_decrease=False)
                assert self.last_approved is not None
                target = ask.lower(self.last_approved)
                if target.any_less(current):
                    raise RunnerPanicError(f"{target} after a refused downscale is below {current}")
        if target != current:
            await self._patch(target)
        self.use = target
        if target.any_greater(current):
            cpu, memory = self.wish.cpu, self.wish.memory
            self.wish = Wish(cpu and target.cpu <= current.cpu, memory and target.mem <= current.mem)
            await self._upscale(target)
        return ask

    async def _downscale(self, target: Resources) -> bool | None:
        try:
            assert self.server is not None
            answer = decode(DOWNSCALE_RESULT, await self.server.ask("/downscale", target))
        except (InformantUnusableError, BadJSONError) as fault:
            self.journal.note("informant unusable", why=str(fault))
            return None
        return bool(answer["Ok"])

    async def _upscale(self, target: Resources) -> None:
        try:
            assert self.server is not None
            await self.server.ask("/upscale", target)
        except InformantUnusableError as fault:
            self.journal.note("informant unusable", why=str(fault))

    async def _patch(self, target: Resources) -> None:
        """The VM is believed to follow at once."""
        if self.vm.patch_fails:
            raise RunnerPanicError("VM patch failed")
        self.vm.use = target
        self.vm.patches.append(target)
        self.journal.note("patched", use=str(target))
        if self.vm.on_patch is not None:
            self.vm.on_patch(target)
