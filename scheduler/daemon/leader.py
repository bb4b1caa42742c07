"""A scheduler on Kubernetes: one of several processes leads, by a Lease; the others answer with its address.

Each time that this process leads begins with lists and a core of its own, whose rows are unsettled, and ends with them. The guard asks
before each decision whether the Lease still holds, so a process that was paused grants nothing when it goes on.
"""

import asyncio
import dataclasses
import random
import time
import uuid
from collections.abc import Awaitable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from hosting import lifecycle, logs, metrics, server
from hosting.access import AccessScope
from hosting.addresses import endpoint
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.lease import Leadership, LeaseElector, LeaseTimes
from hosting.kubernetes.recorder import EventRecorder
from hosting.problems import HEALTHZ, METRICS, READYZ
from hosting.routes import PromptHandler, answered
from hosting.settings import FaultsError, SettingsError
from hosting.supervisor import Child
from protocol import codec
from protocol.extension import AGENT_HEADER
from protocol.notices import NOTICES_PATH
from protocol.reasons import ErrorCode
from scheduler.access.ports import Access, ListenError
from scheduler.daemon.leader_label import LeaderLabel
from scheduler.daemon.scheduling import check_usable
from scheduler.daemon.serving import (
    UNREADABLE,
    ConfigurationSource,
    Serving,
    ServingOptions,
    Sources,
    description_if_any,
    server_limits,
)
from scheduler.daemon.term import (
    KubernetesOptions,
    LeadershipTerm,
    LeaseGuard,
    cluster_of,
    configuration_of,
    recorder_of,
    tell_refused,
)
from scheduler.permits.service.answers import not_leader
from scheduler.permits.service.config_file import Configuration
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.kube_extender.listener import ExtenderListener
from scheduler.ports import Cluster

T = TypeVar("T")


async def into(found: list[T], wait: Awaitable[T]) -> None:
    found.append(await wait)


async def either(*waits: "asyncio.Task[Any] | Coroutine[Any, Any, Any]") -> None:
    """Return with the first of them, whose error counts. Coroutines are cancelled then; tasks go on."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    own = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own)


_AGENT_HEADER: Final = AGENT_HEADER.lower()
_OF_AGENTS: Final = ("/", "/batch", NOTICES_PATH)
AWAITED_S: Final = 3.0
"""A request is held so long for this process to lead. The rest of the caller's patience goes to a look at the cluster."""


def is_published(request: server.Request) -> bool:
    """Whether a caller without the extension asks for a permit: it posts to `/` only."""
    return request.path == "/" and _AGENT_HEADER not in request.headers


class HeldRequests:
    """Requests of callers without the extension that wait for this process to lead. The server's cap on connections bounds them."""

    def __init__(self) -> None:
        self._leads = asyncio.Event()
        self._handler: PromptHandler | None = None

    def answer_by(self, handler: PromptHandler | None) -> None:
        """This process leads, and `handler` answers; None: it leads no more."""
        self._handler = handler
        (self._leads.set if handler is not None else self._leads.clear)()

    async def serve(self, request: server.Request) -> server.Reply | server.HangUp:
        """The answer once this process leads; the end of the connection if it does not lead in time."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(AWAITED_S):
                await self._leads.wait()
        except TimeoutError:
            return server.HangUp()
        if self._handler is None:
            return server.HangUp()
        limit = codec.MAX_FIRST_REQUEST_BYTES
        is_cut = len(request.body) > limit
        found = structs.replace(request, body=request.body[:limit], is_cut=is_cut, waited_s=clock() - began_s)
        return await answered(self._handler(found))


def refuse(
    request: server.Request, leader: str | None, own: str, unready: str = ""
) -> server.Reply | server.HangUp:
    """Any answer but a permit would be fatal to callers without the extension, which post to `/` only. `own` is this process's address,
    `unready` says why it cannot lead."""
    if is_published(request):
        return server.HangUp()
    if request.path in _OF_AGENTS:
        return not_leader(leader)
    if leader is None:
        detail = "no scheduler leads now, as far as this one knows"
        detail += f"; it cannot lead itself: {unready}" if unready else ""
    elif leader == own:
        detail = "this scheduler does not serve yet, or no more"
    else:
        detail = f"another scheduler leads; ask {leader}"
    return server.problem(503, ErrorCode.NOT_LEADER, detail, leader=leader)


def led_routes(
    options: ServingOptions, cluster: Cluster, *, has_scheduling: bool
) -> tuple[server.Route, ...]:
    """The routes that a leader has beside those of every scheduler, to be described. They are those of a core that never begins.

    Pages of scheduling plugins are left out: which there are is known once they are made, and only a leader makes them.
    """
    options = options.copy()
    options["journal"] = options["state"] = None  # only the leader's may be open
    serving = Serving(options, Sources(cluster, None, dict, are_pools_objects=True))
    if not has_scheduling:
        return serving.routes()
    ports = ExtenderPorts(serving.placements, serving.placement_admission, time.monotonic)
    return (*serving.routes(), *SharedHooks(ports, logs.logger("scheduling")).routes(dict))


RETRY: Final = Backoff(base_s=1.0, cap_s=10.0)
"""Between tries to read the cluster and the configuration: each lists every object."""
MAX_BODY_BYTES: Final = 1 << 20


def leading_family(*, leads: bool) -> metrics.Family:
    text = "Whether this process leads"
    return metrics.Family("gauge", "parley_scheduler_leading", text, (), (((), float(leads)),))


class KubernetesProgram:
    """The wiring around leadership. `api` is entered already."""

    def __init__(self, options: KubernetesOptions, api: KubernetesApi, access: Access) -> None:
        self._options = options
        self._api = api
        self._access = access
        self._log = logs.logger("scheduler")
        self._rng = random.Random()
        self._server = server.Server(
            self._log,
            (),
            fallback=self._fallback(),
            limits=server_limits(access.peer_limits),
            gate=access.gate,
        )
        self._published: server.Server | None = None
        self._term: LeadershipTerm | None = None
        self._held = HeldRequests()
        self._stop: lifecycle.Stop | None = None
        has_scheduling = options["mode"] != "permits"
        self._led = led_routes(options, cluster_of(api, options, self._rng), has_scheduling=has_scheduling)
        listener = options["listener"]
        self._listener = (
            ExtenderListener(listener, access, logs.logger("extender")) if listener is not None else None
        )
        self._is_ready = False
        self._unready = ""
        """Why this process cannot lead."""
        self._has_led = False
        self._elector: LeaseElector | None = None
        self._address = ""
        pod = options["pod"]
        self._label = (
            LeaderLabel(api, pod, options["scheduler_name"], self._rng, self._log)
            if pod is not None
            else None
        )
        self._faults = FaultLog(self._log, "not ready", "ready")

    # ------------------------------------------------------------ what is answered

    def _fallback(self) -> server.Route:
        return server.Route(
            "*", "/", self._refuse, max_body_bytes=MAX_BODY_BYTES, cuts=True, scope=AccessScope.KNOWN
        )

    def _fallback_of_published(self) -> server.Route:
        return dataclasses.replace(self._fallback(), scope=AccessScope.PERMITS)

    def _common(self) -> tuple[server.Route, ...]:
        return (
            server.Route("GET", "/healthz", self._healthz, about=HEALTHZ, scope=AccessScope.OPEN),
            server.Route("GET", "/readyz", self._readyz, about=READYZ, scope=AccessScope.OPEN),
            server.Route(
                "GET", "/metrics", metrics.handler(self._families), about=METRICS, scope=AccessScope.METRICS
            ),
            *self._options["page_routes"],
        )

    def _answer_from(self, term: "LeadershipTerm | None") -> None:
        """Answer from a core; without one, every route of the protocol and every page names the leader, and all are described."""
        self._term = term
        self._held.answer_by(term.serving.transport.serve if term is not None else None)
        always = self._common()
        if term is not None:
            led = term.routes()
            self._server.route((*always, *led, *description_if_any(led, always, self._log)), None)
        else:
            described = description_if_any(self._led, always, self._log)
            self._server.route((*always, *described), self._fallback())
        if self._published is not None:
            published = term.serving.transport.routes() if term is not None else ()
            self._published.route(published, None if term is not None else self._fallback_of_published())
        if self._listener is not None:
            extender = term.extender if term is not None else None
            self._listener.answer_from(extender.routes() if extender is not None else None)

    async def _refuse(self, request: server.Request) -> server.Reply | server.HangUp:
        elector = self._elector
        is_ending = self._stop is not None and self._stop.is_requested()
        if is_published(request) and not is_ending and (elector is None or elector.is_near(AWAITED_S)):
            return await self._held.serve(request)
        leader = elector.leader if elector is not None else None
        return refuse(request, leader, self._address, self._unready)

    async def _healthz(self, _: server.Request) -> server.Reply:
        return server.text(200, "ok")

    async def _readyz(self, _: server.Request) -> server.Reply:
        return (
            server.text(200, "ok")
            if self._is_ready
            else server.problem(
                503, ErrorCode.NOT_READY, "cluster and configuration were not read yet, or have faults"
            )
        )

    def _families(self) -> Iterator[metrics.AnyFamily]:
        term = self._term
        yield leading_family(leads=term is not None)
        yield from self._api.families()
        yield from term.families(self._server) if term is not None else metrics.server_families(self._server)

    # ------------------------------------------------------------ from its beginning to its end

    async def run(self, stop: lifecycle.Stop) -> int:
        self._stop = stop
        self._answer_from(None)
        access = self._access
        try:
            port = await access.listen(self._server, self._options["host"], self._options["port"])
            if self._listener is not None:
                await self._listener.open()
            self._published = await access.open_published((), self._fallback_of_published())
            self._log.info("who may call", **access.who_may(self._options["host"]))
            access.start()
            return await self._run(stop, port)
        except ListenError as error:
            click.echo(str(error), err=True)
            return 1
        finally:
            if self._listener is not None:
                await self._listener.close()
            await self._server.close()
            if self._published is not None:
                await self._published.close()
            await access.close()

    async def _run(self, stop: lifecycle.Stop, port: int) -> int:
        self._address = f"{self._access.scheme}://{self._options['advertised'].endpoint(port)}"
        elector = self._elector = self._make_elector()
        where = endpoint(self._options["host"], port)
        self._log.info("listening", address=f"{self._access.scheme}://{where}")
        ending = asyncio.create_task(stop.wait(), name="request to end")
        try:
            await either(ending, self._prove_and_tell())
            while not stop.is_requested():
                won: list[Leadership] = []
                await either(ending, into(won, elector.acquire()))
                for leadership in won:
                    await self._lead(elector, leadership, ending)
        finally:
            ending.cancel()
        return 0

    def _make_elector(self) -> LeaseElector:
        pod = self._options["pod"]
        return LeaseElector(
            self._api,
            *self._options["lease"],
            identity=f"{pod[1] if pod is not None else 'scheduler'}_{uuid.uuid4()}",
            address=self._address,
            times=LeaseTimes.of(self._options["lease_duration_s"]),
            clock=time.monotonic,
            rng=self._rng,
            log=self._log,
        )

    async def _prove_and_tell(self) -> None:
        recorder = recorder_of(self._api, self._options, self._rng)
        telling = asyncio.create_task(recorder.run(), name="Events")
        try:
            await self._prove(recorder)
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    async def _prove(self, recorder: EventRecorder) -> bool:
        """Read everything once: a process that cannot must not lead, and is not ready. Nor is a pod that bears the label of its last leader:
        published agents would ask it for the first time. A ConfigMap with faults is told of once for each text."""
        failures = 0
        while True:
            configuration: ConfigurationSource | None = None
            try:
                if self._label is not None:
                    await self._label.clear()
                await cluster_of(self._api, self._options, self._rng).prove_readable()
                configuration = configuration_of(self._api, self._options, self._rng)
                if configuration is not None:
                    self._check(configuration, await configuration.refresh())
            except UNREADABLE as error:
                self._faults.failed(error)
                self._note_unready(error, configuration, recorder)
                failures += 1
                await asyncio.sleep(RETRY.delay_s(failures, self._rng.random()))
            else:
                self._is_ready = True
                self._unready = ""
                self._faults.worked()
                return True

    def _note_unready(
        self, error: Exception, source: ConfigurationSource | None, recorder: EventRecorder
    ) -> None:
        text = "; ".join(line.strip() for line in str(error).splitlines())
        if text != self._unready:
            self._unready = text
            tell_refused(recorder, source, f"this scheduler does not lead until that is mended: {text}")

    def _check(self, source: ConfigurationSource, read: Configuration | None) -> None:
        """A leader with profiles that cannot be used would serve nobody, and keep others from leading. Raises `SettingsError`."""
        mode = self._options["mode"]
        if read is None or mode == "permits":
            return
        try:
            check_usable(read.profiles, is_full=mode == "full")
        except FaultsError as error:
            raise SettingsError(source.path, error.faults) from None

    async def _lead(
        self, elector: LeaseElector, leadership: Leadership, ending: "asyncio.Task[None]"
    ) -> None:
        """Lead until the Lease is lost or the end is asked for."""
        self._log.info("leads", epoch=leadership.epoch)
        losing = asyncio.create_task(leadership.lost.wait(), name="loss of the Lease")
        guard = LeaseGuard(leadership, elector)
        is_first, self._has_led = not self._has_led, True
        term = LeadershipTerm(
            self._api,
            self._options,
            self._rng,
            leadership,
            guard,
            is_first=is_first,
            refusals=self._access.refusals,
        )
        try:
            term.watch()
            await either(ending, losing, self._load(term))
            if not (ending.done() or losing.done()):
                self._answer_from(term)
                term.changed = partial(self._answer_from, term)
                term.serving.greet(self._address)
                term.start(self._label_of(leadership))
                await asyncio.wait([ending, losing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            term.changed = lambda: None
            self._answer_from(None)
            term.serving.drain()
            losing.cancel()
            await term.end()
            if self._label is not None:
                await self._label.remove()
            await leadership.release()
            self._log.info("leads no more", epoch=leadership.epoch)

    def _label_of(self, leadership: Leadership) -> dict[str, Child]:
        """The task that keeps the leader's label where it belongs; none outside of a pod."""
        label = self._label
        if label is None:
            return {}
        return {"label of the leader": lambda: label.keep(lambda: leadership.is_valid(time.monotonic()))}

    async def _load(self, term: LeadershipTerm) -> None:
        failures = 0
        while faults := await term.load():
            self._faults.failed("; ".join(faults))
            failures += 1
            await asyncio.sleep(RETRY.delay_s(failures, self._rng.random()))
        self._faults.worked()
