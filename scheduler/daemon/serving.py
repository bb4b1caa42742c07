"""One core from its beginning to its end, with all that is around it: cluster, rules, pools, service, journal.

A standalone scheduler has one of these. A scheduler with a Lease has one for each time that it leads, so that nothing of an
earlier time is taken for what is so now.
"""

import asyncio
import gc
import importlib.metadata
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypedDict

from hosting import lifecycle, logs, metrics, openapi, server
from hosting.access import AccessScope, Refusals
from hosting.fault_log import FaultLog
from hosting.long_work import without_collections
from hosting.peers import PeerLimits
from hosting.settings import FaultsError, SettingsError
from hosting.supervisor import Child, Supervisor
from hosting.threads import in_own_thread
from hosting.watched_file import FileUnreachableError
from protocol.notices import LONGEST_POLL_S
from scheduler.explain.pages import ExplainPages
from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.permits.core.placeholders import PlaceholderRules
from scheduler.permits.core.rules import Rules
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.config_file import Configuration
from scheduler.permits.service.inputs import CoreOwnCpus, CorePlacements
from scheduler.permits.service.journal_files import JournalWriter
from scheduler.permits.service.metrics import families
from scheduler.permits.service.notices import NOTICES
from scheduler.permits.service.service import PermitService
from scheduler.permits.service.transport import BATCH, MAX_BODY_BYTES, BatchService, PermitTransport
from scheduler.placing.core.profile import Profile
from scheduler.pools.core.values import Pool
from scheduler.pools.service import RETRY_S, PoolService, pool_families
from scheduler.ports import (
    Cluster,
    ClusterUnreachableError,
    LeadershipGuard,
    Migrator,
    PlacementAdmission,
    Placements,
    SoleScheduler,
)

SAFE_HANDOVER_S: Final = 40.0
"""An agent's lease, and the deadlines of a command and a request beyond it."""
GC_THRESHOLDS: Final = (10_000, 1_000, 1_000)
SWITCH_S: Final = 0.001
MAX_CONNECTIONS: Final = 20_480
"""A poll for notices of each of 16,384 agents, and 4,096 for everything else."""
OTHER_FILES: Final = 512
"""Files that are no connections of agents."""
POLL_SLACK_S: Final = 5.0
TICK_S = 1.0
REFRESH_S = 2.0
UNREADABLE: Final = (SettingsError, ClusterUnreachableError, FileUnreachableError)
"""The errors raised by a read of the cluster or the configuration."""


NOT_LEADING: Final = "Another scheduler leads (`leader`), or none that this one knows of."
"""The meaning of 503 if a route says nothing else of it."""


class ServingOptions(TypedDict):
    """The options for each core of the process."""

    published_agents: tuple[str, ...]
    trust_published: bool
    handover_s: float
    rest_s: float
    first_start: bool
    journal: Path | None
    state: Path | None


class ConfigurationSource(Protocol):
    """The source of the configuration: a file, or a ConfigMap."""

    @property
    def path(self) -> Path:
        """The path that faults name."""

    async def refresh(self) -> Configuration | None:
        """The configuration, if it is read for the first time or has changed since; else None. Raises one of `UNREADABLE`."""


def no_scheduling(profiles: tuple[Profile, ...]) -> None:
    del profiles


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a core. `pools` are the pools that are described there, another object after each change;
    `are_pools_objects` says that they are objects of Kubernetes. `use_profiles` takes the profiles of the scheduling framework up;
    it raises `FaultsError` if they cannot be used; `use_placeholders` takes up their settings. `refreshed` is called whenever the core has
    taken what the cluster shows, `refused` with the faults of a configuration that is not taken up, once for each text. `refusals` takes the
    refusals to agents of other nodes."""

    cluster: Cluster
    configuration: ConfigurationSource | None
    pools: Callable[[], Mapping[str, Pool]]
    are_pools_objects: bool = False
    migrator: Migrator | None = None
    guard: LeadershipGuard = field(default_factory=SoleScheduler)
    use_profiles: Callable[[tuple[Profile, ...]], None] = no_scheduling
    use_placeholders: Callable[[PlaceholderRules | None], object] = lambda _: None
    refreshed: Callable[[], object] = lambda: None
    refused: Callable[[str], object] = lambda _: None
    refusals: Refusals | None = None


def description(led: Iterable[server.Route], always: Iterable[server.Route]) -> server.Route:
    """The route that describes those of a scheduler: `led` are answered by the one that leads, `always` by every one. It is the same for
    schedulers that have nobody beside them. Raises `ValueError` if one says nothing of itself."""
    version = importlib.metadata.version("parley-autoscaler")
    routes = (*map(_led, led), *always)
    return openapi.route("Parley scheduler", version, routes, shared={503: NOT_LEADING})


def _led(route: server.Route) -> server.Route:
    about = route.about
    return replace(route, about=replace(about, shared=(503,))) if about is not None else route


def description_if_any(
    led: tuple[server.Route, ...], always: tuple[server.Route, ...], log: logs.Logger
) -> tuple[server.Route, ...]:
    """The route that describes all, if that can be done: a page that says nothing of itself must not end a scheduler that leads."""
    try:
        return (description(led, always),)
    except Exception as error:  # noqa: BLE001 - a fault of a description is a fault of it alone
        log.error("the pages cannot be described, and are served without that", error=repr(error))
        return ()


def server_limits(peers: PeerLimits | None = None) -> server.ServerLimits:
    """The limits of the port of agents, with those of each peer. The process's limit of open files is raised for them."""
    files = lifecycle.allow_open_files(MAX_CONNECTIONS + OTHER_FILES)
    connections = max(min(MAX_CONNECTIONS, files - OTHER_FILES), OTHER_FILES)
    return server.ServerLimits(connections, peers=peers)


class Serving:
    """The wiring around one core. Raises `OSError` if the directory of the journal or the state cannot be used."""

    def __init__(self, options: ServingOptions, sources: Sources, *, epoch: int = 0) -> None:
        self._log = logs.logger("scheduler")
        self._sources = sources
        self.core = Core(
            SchedulerConfig(
                instance=uuid.uuid4(),
                epoch=epoch,
                started_s=time.monotonic(),
                unix_offset_s=time.time() - time.monotonic(),
                is_first_start=options["first_start"],
                handover_s=options["handover_s"],
                rest_s=options["rest_s"],
                published_agents=options["published_agents"],
                trust_published=options["trust_published"],
            )
        )
        directory = options["journal"]
        self._journal = JournalWriter(directory, self.core, self._log) if directory is not None else None
        self.pools = PoolService(
            self.core,
            self._tell,
            time.monotonic,
            logs.logger("pools"),
            state_directory=options["state"],
            are_objects=sources.are_pools_objects,
        )
        self.service = PermitService(
            self.core,
            sources.cluster,
            time.monotonic,
            self._log,
            self._journal,
            self.pools.admission_queue,
            sources.migrator,
            guard=sources.guard,
            refusals=sources.refusals,
        )
        self.transport = PermitTransport(self.service)
        self._pages = ExplainPages(
            self.core,
            self.service.recorder.memory,
            self.pools.admission_queue.state_of,
            time.monotonic,
            lambda: self._config_fault,
        )
        self.placements: Placements = CorePlacements(
            self.core, self.service.take, time.monotonic, self.pools.placement_admission.still_admits
        )
        self.own_cpus = CoreOwnCpus(self.core, self.service.take, time.monotonic, sources.guard)
        self.placement_admission: PlacementAdmission = self.pools.placement_admission
        self._batches = BatchService(self.service, self.core.vms)
        self._config_faults = FaultLog(
            self._log, "configuration not usable, the old one stays in force", "configuration usable again"
        )
        self._config_fault = ""
        """The reason why the configuration is not taken up; empty if it is."""
        self._untaken: Configuration | None = None
        self._retry_s = 0.0
        self.supervisor = Supervisor(self._log, random.Random())

    def _tell(self, event: events.Input) -> None:
        self.service.take(event)

    def routes(self) -> tuple[server.Route, ...]:
        return (
            *self.transport.routes(),
            server.Route(
                "POST",
                "/batch",
                self._batches.serve,
                max_body_bytes=MAX_BODY_BYTES,
                about=BATCH,
                scope=AccessScope.PERMITS,
            ),
            server.Route(
                "GET",
                "/v1/notices",
                self.service.notices.serve,
                about=NOTICES,
                deadline_s=LONGEST_POLL_S + POLL_SLACK_S,
                scope=AccessScope.PERMITS,
            ),
            *self._pages.routes(),
            *self.pools.routes(),
        )

    def families(self, http: server.Server) -> Iterator[metrics.AnyFamily]:
        lost = self._journal.lost_total if self._journal is not None else 0
        yield from families(self.core, self.service.stats, http, lost)
        yield from self.service.notices.families()
        yield from pool_families(self.core.ledger, self.pools.admission_queue, self.pools.stats)

    # ------------------------------------------------------------ from its beginning to its end

    async def load(self) -> list[str]:
        """Read everything; the faults of all at once, and nothing is served while there are any."""
        faults = []
        self._retry_s = 0.0  # called again after faults, too: nothing is served by other rules than those that are described
        try:
            await self._configure()
        except UNREADABLE as error:
            faults.append(str(error))
            self._note_config_fault(error)
        else:
            self._config_fault = ""
        try:
            self.pools.load(is_chain_known=not faults)
        except SettingsError as error:
            faults.append(str(error))
        try:
            with without_collections():
                await self.service.load()
        except UNREADABLE as error:
            faults.append(str(error))
        if not faults:
            await self.pools.follow(self._sources.pools())
        return faults

    def greet(self, address: str) -> None:
        """Log that the scheduler serves, and the risks of its options."""
        config = self.core.config
        self._log.info(
            "serving",
            address=address,
            instance=str(config.instance),
            epoch=config.epoch,
            nodes=sum(1 for _ in self.core.ledger.nodes()),
            vms=len(self.core.vms),
        )
        if config.handover_s < SAFE_HANDOVER_S:
            self._log.warning(
                "--handover is shorter than agents may hold what they were permitted: a dead agent's room may be given "
                "away while its VM still grows",
                handover_s=config.handover_s,
                safe_s=SAFE_HANDOVER_S,
            )
        if not config.is_first_start:
            self._log.info(
                "what agents may hold from before this start is kept for a while; growth may wait for it",
                kept_s=config.handover_s,
            )
        else:
            self._log.warning(
                "--first-start: what agents may hold from an earlier scheduler is not kept; leave it out of unit files"
            )
        if config.published_agents:
            self._log.info("callers without the extension are served", nodes=list(config.published_agents))
        if config.trust_published:
            self._log.warning(
                "--trust-published: where the cluster shows no sizes, what callers without the extension were last told "
                "counts as what they use, and before that their first request; for their VMs it is not promised that the "
                "node is never overcommitted"
            )

    def start(self, others: Mapping[str, Child] | None = None) -> None:
        # Loaded objects stay; those of a request are gone with their last reference. Few cycles ever need collecting. A collection of
        # the young ones takes half a millisecond; one of all at 100,000 VMs would be a pause of half a second, and is put off for ever.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        # Threads that write the journal or read a changed file must not hold the loop for Python's usual 5 ms.
        sys.setswitchinterval(SWITCH_S)
        self.supervisor.start("clock", self._tick)
        self.supervisor.start("cluster", self._refresh)
        self.supervisor.start("notices", self.service.notices.run)
        # Apart from the cluster: a plugin that does not start, or hangs in a hook, must not keep it from being read.
        self.supervisor.start("configuration and pools", self._refresh_pools)
        for name, child in (others or {}).items():
            self.supervisor.start(name, child)

    def drain(self) -> None:
        """Answer the agents that listen for notices: they would keep the server from closing."""
        self.service.notices.close()

    async def end(self) -> None:
        """End the tasks. Callers that still wait are not answered."""
        await self.supervisor.stop()
        await self.service.close()

    async def close(self) -> None:
        """Free what is held outside of the process."""
        await self.pools.close()
        if self._journal is not None:
            await in_own_thread(self._journal.close)

    # ------------------------------------------------------------ what goes on

    async def _tick(self) -> None:
        pause_s = TICK_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = 0.0 if self.service.tick() else TICK_S

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if await self.service.refresh():
                self._sources.refreshed()

    async def _refresh_pools(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._refresh_config()
            await self.pools.follow(self._sources.pools())
            await self.pools.flush()
            for quota, excess, uids in self.pools.excesses():
                self.placements.ask_back(quota, excess, uids)

    async def _refresh_config(self) -> None:
        """Take a changed configuration up; one with faults is reported once, and the old one stays in force."""
        try:
            await self._configure()
        except UNREADABLE as error:
            self._config_faults.failed(error)
            self._note_config_fault(error)
        else:
            if self._untaken is None:  # else it waits for its next try
                self._config_faults.worked()
                self._config_fault = ""
        self.service.stats.rules_stale = self._config_faults.is_present

    def _note_config_fault(self, error: Exception) -> None:
        text = "; ".join(line.strip() for line in str(error).splitlines())
        if text != self._config_fault:
            self._config_fault = text
            self._sources.refused(text)

    def _stop_first(self, rules: Rules) -> None:
        """Stop growth before anything else: an emergency stop does not wait for plugins that may not start."""
        now = self.core.state.rules
        if rules.growth.stopped and not now.growth.stopped:
            self.service.take(events.Configured(replace(now, growth=replace(now.growth, stopped=True))))
            self._log.warning("growth is stopped by the configuration")

    async def _configure(self) -> None:
        """Take the configuration up if it has changed: all of it, or nothing. Raises as its source does."""
        source = self._sources.configuration
        if source is None:
            return
        read = await source.refresh()
        if read is not None:
            self._untaken, self._retry_s = read, 0.0
        if self._untaken is None or time.monotonic() < self._retry_s:
            return
        # A plugin that cannot start now may be able to later: the file is tried again, although it has not changed.
        self._retry_s = time.monotonic() + RETRY_S
        self._stop_first(self._untaken.rules)
        try:
            self._sources.use_profiles(self._untaken.profiles)
        except FaultsError as error:
            raise SettingsError(source.path, error.faults) from None
        await self.pools.configure(self._untaken.chain, source.path)
        self._sources.use_placeholders(self._untaken.placeholders)
        rules, self._untaken = self._untaken.rules, None
        self.service.take(events.Configured(rules))
        self._log.info(
            "configured",
            stopped=rules.growth.stopped,
            recommend_only=rules.growth.recommend_only,
            overrides=len(rules.overrides),
            migration=rules.migration_enabled,
        )
