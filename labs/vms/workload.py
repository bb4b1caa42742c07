"""`python -m labs.vms.workload`: the load generator inside a guest. `GET /load` shows what it does, `PUT /load` sets that.

Jobs and memory are in processes of their own: the GIL would let one process use one CPU only, and the process that answers stays
when the OOM killer ends another. A process that has ended is reported and started again.
"""

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from hosting import lifecycle, logs
from hosting.server import Reply, Request, Route, Server, text
from hosting.settings import SettingsError, parse_json
from hosting.supervisor import Child, Supervisor
from labs.vms.load.messages import ActualLoad, EndedChild, JobCounts, LoadReport, LoadSetting
from labs.vms.load.plan import IDLE, JOB_CPU_S, MAX_IN_FLIGHT, WORKERS, JobStream, MemoryRamp
from labs.vms.load.processes import AnsweringChild, ChildEndedError, keep

PORT: Final = 10400
ANYWHERE: Final = "0.0.0.0"  # noqa: S104 - inside a guest, whose network only its host reaches
JOBS: Final = "jobs"
MEMORY: Final = "memory"


@dataclass(frozen=True, slots=True)
class _LastEnd:
    """A process that has ended, and when."""

    kind: str
    how: str
    at_s: float


class GuestWorkload:
    """The load of a guest. `children` carry it out."""

    def __init__(self, log: logs.Logger, rng: random.Random) -> None:
        self._log = log
        self._rng = rng
        self._load = IDLE
        self._stream = JobStream(time.monotonic())
        self._ramp = MemoryRamp()
        self._jobs: asyncio.Queue[float] = asyncio.Queue(MAX_IN_FLIGHT)
        self._rate_changed = asyncio.Event()
        self._memory_changed = asyncio.Event()
        self._unstarted = {MEMORY, *(f"{JOBS}-{number}" for number in range(WORKERS))}
        """The processes that have not answered yet, by name. Starting them uses seconds of a guest's CPU, so nothing is served before."""
        self._holder: AnsweringChild | None = None
        self._ends = {JOBS: 0, MEMORY: 0}
        self._last_end: _LastEnd | None = None

    def routes(self) -> tuple[Route, ...]:
        """The load generator's HTTP routes."""
        return Route("GET", "/load", self._shown), Route("PUT", "/load", self._set)

    def children(self) -> dict[str, Child]:
        """The tasks that run beside the server, by name."""
        jobs = {name: partial(self._work, name) for name in self._unstarted if name != MEMORY}
        return {"arrivals": self._arrivals, MEMORY: self._memory, **jobs}

    async def _shown(self, _: Request) -> Reply:
        if self._unstarted:
            return text(503, "its processes start")
        return Reply(body=msgspec.json.encode(self._report(time.monotonic())))

    async def _set(self, request: Request) -> Reply:
        if self._unstarted:
            return await self._shown(request)
        try:
            load = parse_json(Path("load"), request.body, LoadSetting).load()
        except SettingsError as error:
            return text(400, str(error))
        now_s = time.monotonic()
        self._begin(now_s)
        self._load = load
        self._stream.set(load.cpus, now_s)
        self._ramp.set(load)
        if self._holder is not None:
            self._holder.tell("")  # what it is doing may be too much now
        self._rate_changed.set()
        self._memory_changed.set()
        return await self._shown(request)

    def _report(self, now_s: float) -> LoadReport:
        stream, last = self._stream, self._last_end
        return LoadReport(
            LoadSetting.of(self._load).model_dump(by_alias=True),
            ActualLoad(round(stream.used_cpus(now_s), 3), stream.in_flight, self._ramp.held_bytes),
            JobCounts(stream.arrived, stream.done, stream.lost, stream.failed),
            self._ends,
            None if last is None else EndedChild(last.kind, last.how, round(now_s - last.at_s, 1)),
        )

    def _begin(self, now_s: float) -> None:
        for _ in range(self._stream.begin(now_s)):
            self._jobs.put_nowait(JOB_CPU_S)  # all that are in flight fit

    async def _arrivals(self) -> None:
        while True:
            self._begin(time.monotonic())
            await _changed(self._rate_changed, self._stream.next_s())

    async def _work(self, name: str) -> None:
        await keep(JOBS, partial(self._do_jobs, name), self._note_end, self._rng)

    async def _memory(self) -> None:
        await keep(MEMORY, self._hold_memory, self._note_end, self._rng)

    async def _do_jobs(self, name: str, child: AnsweringChild) -> None:
        await self._first_answer(name, child)
        while True:
            seconds = await self._jobs.get()
            try:
                used_s = float(await child.ask(str(seconds)))
            except (ChildEndedError, asyncio.CancelledError):
                self._stream.fail()
                raise
            self._stream.end(time.monotonic(), used_s)

    async def _hold_memory(self, child: AnsweringChild) -> None:
        await self._first_answer(MEMORY, child)
        self._holder = child
        try:
            while True:
                wanted = self._ramp.next_bytes(time.monotonic())
                if wanted is None:
                    await _changed(self._memory_changed, self._ramp.due_s())
                else:
                    self._ramp.held_bytes = int(await child.ask(str(wanted)))
        finally:
            self._holder, self._ramp.held_bytes = None, 0

    async def _first_answer(self, name: str, child: AnsweringChild) -> None:
        await child.ask("0")
        self._unstarted.discard(name)

    def _note_end(self, kind: str, how: str) -> None:
        self._ends[kind] += 1
        self._last_end = _LastEnd(kind, how, time.monotonic())
        self._log.warning("child ended", child=kind, error=how)


async def _changed(event: asyncio.Event, until_s: float | None) -> None:
    """Wait for the event, which is cleared then, or until the clock shows `until_s`."""
    try:
        async with asyncio.timeout(None if until_s is None else max(until_s - time.monotonic(), 0.0)):
            await event.wait()
    except TimeoutError:
        return
    event.clear()


async def _serve(host: str, port: int, stop: lifecycle.Stop) -> int:
    log, rng = logs.logger("workload"), random.Random()
    workload, supervisor = GuestWorkload(log, rng), Supervisor(log, rng)
    server = Server(log, workload.routes())
    try:
        port = await server.start(host, port)
    except OSError as error:
        click.echo(f"cannot listen on {host}, port {port}: {error.strerror}", err=True)
        return 1
    for name, child in workload.children().items():
        supervisor.start(name, child)
    log.info("serving", host=host, port=port)
    await stop.wait()
    await server.close()
    await supervisor.stop()
    return 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", default=ANYWHERE, show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0: any free."
)
def main(host: str, port: int) -> None:
    """The load generator of a guest: PUT /load sets what it uses, GET /load shows that."""
    logs.configure(
        "info", "json"
    )  # its standard error is the console of the guest, and nobody reads that there
    sys.exit(lifecycle.run(partial(_serve, host, port)))


if __name__ == "__main__":
    main()
