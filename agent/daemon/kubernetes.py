"""The additional parts of an agent on Kubernetes: the API server, the feed of its node, and the schedulers behind a Service, by its EndpointSlices.

Imported only if the settings name Kubernetes: the client library is an extra.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from agent.backends.factories import OnKubernetes
from agent.backends.pod.containers import DivisionRules
from agent.core.ports import VmSource
from agent.daemon import annotations, policies
from agent.daemon.announcer import Announcer, ClusterNode, Conditions, DenialSettings
from agent.daemon.controllers import Controllers
from agent.daemon.daemon import DaemonParts
from agent.daemon.evictor import Evictor
from agent.daemon.settings import AgentSettings
from agent.peers.scheduler import Candidates
from agent.sources.described import AgentChecks
from agent.sources.kubernetes import KubernetesSource, Stores
from hosting.addresses import endpoint
from hosting.kubernetes import pods
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.names import NEON_CONFIG
from hosting.kubernetes.objects import RESOURCE_NAMES, ResourceName
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import (
    ENDPOINT_SLICES,
    NODES,
    PODS,
    SCALING_POLICIES,
    VIRTUAL_MACHINES,
    Manifest,
    ResourceType,
)
from hosting.kubernetes.scaling import Scaling
from hosting.logs import Logger
from hosting.supervisor import Supervisor

USER_AGENT: Final = "parley-agent"
"""Also the field manager of the agent's writes."""
REPORTER: Final = "parley.dev/agent"
"""The reporter of Events."""
SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""Label of an EndpointSlice: its Service."""


class _Watching:
    """Makes reflectors and runs them, and other tasks beside."""

    def __init__(self, api: KubernetesApi, supervisor: Supervisor, log: Logger, rng: random.Random) -> None:
        self.api = api
        self.listener: Callable[[object], None] = lambda _: None
        """Is told of every change."""
        self.log = log
        self.rng = rng
        self.start = supervisor.start

    def reflector(
        self,
        type_: ResourceType,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        is_optional: bool = False,
    ) -> Reflector:
        """The objects of a type, kept up to date from now on."""
        made = Reflector(
            self.api,
            type_,
            namespace,
            rng=self.rng,
            log=self.log,
            clock=time.monotonic,
            on_change=self._changed,
            label_selector=labels,
            field_selector=fields,
            is_optional=is_optional,
        )
        self.start(f"watch of {type_.plural}", made.run)
        return made

    def _changed(self, changes: object) -> None:
        self.listener(changes)  # as it is by then


@asynccontextmanager
async def connected(
    settings: AgentSettings, file: VmSource, log: Logger, rng: random.Random
) -> AsyncIterator[DaemonParts]:
    """Connect and watch until the end of the block; `file` is the source if the settings name no other. Raises `CredentialsError`."""
    given = settings.kubernetes
    credentials = ApiCredentials(given.kubeconfig, given.context)
    async with KubernetesApi(credentials, user_agent=USER_AGENT) as api:
        supervisor = Supervisor(log, rng)
        watching = _Watching(api, supervisor, log, rng)
        candidates = Candidates(_schedulers(settings, watching))
        try:
            if settings.source == "file":
                yield DaemonParts(file, candidates)
            else:
                yield _of_node(settings, watching, candidates)
        finally:
            await supervisor.stop()


def _of_node(settings: AgentSettings, watching: _Watching, candidates: Candidates) -> DaemonParts:
    """The feed of the node, and the tools of its back end."""
    node = settings.node
    pods = watching.reflector(PODS, fields=f"spec.nodeName={node}")
    stores = Stores(
        pods=pods,
        node=watching.reflector(NODES, fields=f"metadata.name={node}"),
        policies=watching.reflector(SCALING_POLICIES, is_optional=True),
        machines=watching.reflector(VIRTUAL_MACHINES, is_optional=True),
    )
    registry = policies.standard(has_plugins=settings.plugins.directory is not None)
    source = KubernetesSource(
        node, stores, settings.kubernetes.informant_base, _fixed, _checks(registry, settings.policies)
    )
    watching.listener = source.note_change

    def scaling(name: str) -> Scaling | None:
        found = source.found().get(name)
        return found.scaling if found is not None else None

    def informant(name: str) -> str | None:
        found = source.found().get(name)
        if found is None or found.scaling is None or found.description is None:
            return None
        return found.description.informant_url if found.scaling.informant_port is None else None

    recorder = EventRecorder(
        watching.api,
        REPORTER,
        instance=node,
        clock=time.monotonic,
        rng=watching.rng,
        log=watching.log,
    )
    announcer = _announcer(settings, watching, source, recorder, stores)
    there = ClusterNode(watching.api, stores, recorder, lambda: source.found() if source.has_looked else None)
    return DaemonParts(source, candidates, OnKubernetes(watching.api, scaling, informant), announcer, there)


def _announcer(
    settings: AgentSettings,
    watching: _Watching,
    source: KubernetesSource,
    recorder: EventRecorder,
    stores: Stores,
) -> Announcer:
    api, log, rng = watching.api, watching.log, watching.rng
    controllers = Controllers(api, settings.node, source.found, manager=USER_AGENT, log=log, rng=rng)
    watching.start("Events", recorder.run)
    watching.start("other controllers", controllers.run)
    given = settings.kubernetes
    return Announcer(
        source.found,
        recorder,
        controllers,
        Evictor(api, given.evict_after, rng),
        Conditions(api, log),
        log,
        pods_of_node=lambda: stores.pods.objects().values() if source.has_looked else (),
        denials=DenialSettings(given.denied_after, given.predicted_requests),
    )


def _checks(registry: policies.PolicyRegistry, chosen: Sequence[Any]) -> AgentChecks:
    """The published annotations are those of VirtualMachines alone."""
    of_machines = annotations.checks(registry, chosen)
    of_pods = {name: each for name, each in of_machines.items() if name != NEON_CONFIG}
    return AgentChecks(of_pods, of_machines)


def _fixed(pod: Manifest, scaling: Scaling) -> dict[ResourceName, str]:
    """The resources of a pod that its back end could never change, each with the reasons by container."""
    rules = DivisionRules(scaling.shares, scaling.may_restart)
    found: dict[ResourceName, str] = {}
    for resource in RESOURCE_NAMES:
        if not rules.scaled(pod, resource):
            each = pods.containers(pod)
            found[resource] = "; ".join(f"{one.name}: {rules.why_fixed(one, resource)}" for one in each)
    return found


def _schedulers(settings: AgentSettings, watching: _Watching) -> Callable[[], tuple[str, ...]]:
    """The URLs of the schedulers, as they are at each call."""
    service, port, scheme = settings.scheduler.service, settings.scheduler.port, settings.scheduler.scheme
    if service is None:
        return lambda: settings.schedulers
    namespace, _, name = service.partition("/")
    selector = f"{SERVICE_LABEL}={name}"
    slices = watching.reflector(ENDPOINT_SLICES, namespace, labels=selector)
    return lambda: (*ready_urls(slices.objects().values(), port, scheme), *settings.schedulers)


def ready_urls(slices: Iterable[Manifest], port: int, scheme: str = "http") -> tuple[str, ...]:
    """The URLs of the ready endpoints of a Service, in a fixed order. An endpoint that does not say is ready (EndpointConditions of
    discovery.k8s.io/v1); one that is terminating is not."""
    found = {
        f"{scheme}://{endpoint(address, port)}/"
        for each in slices
        for one in each.get("endpoints") or ()
        if (one.get("conditions") or {}).get("ready") is not False
        for address in one.get("addresses") or ()
    }
    return tuple(sorted(found))
