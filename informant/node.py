"""`parley-informant --node`: the pods of a node, an informant for each pod that an agent speaks of, under `/pods/{uid}/…`; or its view of them.

A pod is served from the first request about it until its cgroup has gone, or until no agent has been registered for a while. One
watcher looks at all pods: often at the few counters that tell of throttling and of full memory, and now and then at everything.
"""

import asyncio
import gc
import random
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from hosting import lifecycle, logs
from hosting.addresses import UNIX, AddressError, Advertised, advertised, endpoint
from hosting.cgroups.tree import CgroupTree, PodGroup
from hosting.client import HttpClient
from hosting.logs import Logger
from hosting.server import HangUp, Reply, Request, Route, Server, ServerLimits, text
from hosting.settings import SettingsError, load
from hosting.supervisor import Child, Supervisor
from informant import diagnose
from informant.core import report
from informant.guest import protection
from informant.guest.pod import PodSource, node_bytes
from informant.service.informant import CONTENT_TYPE, Informant
from informant.service.limits import Guest
from informant.settings import NodeSettings
from protocol import codec

_UNUSED_S: Final = 60.0
"""A pod without a registered agent is forgotten after so long."""
_LOOKS: Final = 16
"""So many pods are looked at in one round because of their counters; the others follow in the next round."""


@dataclass(slots=True)
class ServedPod:
    """A pod that is served, under a `serial` number of its own. It is looked at in full at `look_s`, and is forgotten at `unused_s` unless an agent is registered then.

    Its counters are heeded from `rested_s` on.
    """

    uid: str
    serial: int
    source: PodSource
    informant: Informant
    routes: dict[tuple[str, str], Route]
    look_s: float
    unused_s: float
    rested_s: float = 0.0

    def children(self) -> dict[str, Child]:
        """The tasks of the pod's agents, by names that no other pod has, not even an earlier life of this one."""
        return {
            f"{self.uid} {self.serial} {name}": child
            for name, child in self.informant.agents.children().items()
        }


class NodeInformant:
    """Serves every pod whose cgroup is found. `metrics_port` is the port that agents are told."""

    def __init__(
        self,
        tree: CgroupTree,
        node_memory_bytes: int,
        settings: NodeSettings,
        client: HttpClient,
        log: Logger,
        *,
        takes_sockets: bool = False,
    ) -> None:
        """`takes_sockets`: agents may be called back at Unix sockets."""
        self._takes_sockets = takes_sockets
        self._tree = tree
        self._node_memory_bytes = node_memory_bytes
        self._settings = settings
        self._client = client
        self._log = log
        self._rng = random.Random()
        self._supervisor = Supervisor(log, self._rng)
        self._serial = 0
        self._changed: dict[str, None] = {}
        self.pods: dict[str, ServedPod] = {}
        self.metrics_port = 0

    # ------------------------------------------------------------ routes

    def routes(self) -> tuple[Route, ...]:
        """The routes of the node informant: those of an informant in a guest, for each pod, and its own health and figures."""
        return (
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._healthz),
            Route("*", "/pods/{uid}/{call}", self._of_a_pod),
        )

    async def _of_a_pod(self, request: Request) -> Reply | HangUp:
        pod = await self._pod(request.parameters["uid"])
        if isinstance(pod, Reply):
            return pod
        path = f"/{request.parameters['call']}"
        route = pod.routes.get((request.method, path))
        if route is not None:
            return await route.answer(request)
        allowed = sorted(method for method, known in pod.routes if known == path)
        if allowed:
            return text(405, f"{request.method} is not served here; use {', '.join(allowed)}")
        return text(404, f"there is nothing at {request.path[:200]}")

    async def _pod(self, uid: str) -> ServedPod | Reply:
        """The pod with that UID, which is served from now on; the refusal if there is none, or no room for one more."""
        pod = self.pods.get(uid)
        if pod is not None and not pod.source.is_there():
            await self._forget(pod, "the pod has gone")
            pod = self.pods.get(uid)  # another request may have come first
        if pod is not None:
            return pod
        group = self._tree.find(uid)
        if group is None:
            return text(404, f"no pod with this UID has a cgroup below {self._tree.root}")
        if len(self.pods) >= self._settings.most_pods:
            return text(429, f"{len(self.pods)} pods are served already, which is the most (mostPods)")
        return self._serve(uid, group)

    def _serve(self, uid: str, group: PodGroup) -> ServedPod:
        source = PodSource(group, self._node_memory_bytes)
        log = self._log.bind(pod=uid)
        informant = Informant(Guest(source), self._settings, self._client, log, self._rng)
        informant.agents.metrics_port = self.metrics_port
        informant.agents.takes_sockets = self._takes_sockets

        async def cgroups(_: Request) -> Reply | HangUp:
            try:
                return Reply(200, codec.encode(source.cgroups()))
            except OSError as error:
                return text(404, f"the pod's cgroup cannot be read: {error.strerror}")

        now_s = asyncio.get_running_loop().time()
        served = (*informant.routes(), Route("GET", "/cgroups", cgroups))
        routes = {(each.method, each.path): each for each in served}
        self._serial += 1
        pod = ServedPod(uid, self._serial, source, informant, routes, now_s, now_s + _UNUSED_S)
        self.pods[uid] = pod
        for name, child in pod.children().items():
            self._supervisor.start(name, child)
        log.info("pod served")
        return pod

    async def _forget(self, pod: ServedPod, why: str) -> None:
        """End a pod's sessions: a later request for the pod gets 404, or starts anew."""
        if self.pods.get(pod.uid) is not pod:
            return
        del self.pods[pod.uid]
        self._changed.pop(pod.uid, None)
        pod.informant.limits.end()
        pod.source.close()
        self._log.info("pod no longer served", pod=pod.uid, why=why)
        for name in pod.children():
            await self._supervisor.end(name)

    # ------------------------------------------------------------ watching

    def children(self) -> dict[str, Child]:
        return {"watch": self.watch}

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.round(began_s)
            await asyncio.sleep(max(0.0, began_s + self._settings.poll - loop.time()))

    async def round(self, now_s: float) -> None:
        """Look at the pods that have changed, and in full at those whose turn it is."""
        for pod in list(self.pods.values()):
            try:
                self._poll(pod, now_s)
                if now_s >= pod.look_s:
                    await self._sample(pod, now_s)
            except (OSError, ValueError) as error:
                await self._forget(pod, f"the pod's cgroup cannot be read: {error}")
        for uid in list(self._changed)[:_LOOKS]:
            del self._changed[uid]
            self._look(self.pods[uid])

    def _poll(self, pod: ServedPod, now_s: float) -> None:
        """Note a pod whose limits have held something back; one that is heard already is not looked at in every round."""
        if now_s < pod.rested_s:
            return
        changed = pod.source.changed()
        if changed.cpu or changed.memory:
            wished = pod.informant.agents.wished
            self._changed[pod.uid] = None
            is_news = (changed.cpu and not wished.cpu) or (changed.memory and not wished.memory)
            pod.rested_s = now_s + (0.0 if is_news else self._settings.cpu.throttled_over)

    async def _sample(self, pod: ServedPod, now_s: float) -> None:
        if not pod.source.is_there():
            await self._forget(pod, "the pod has gone")
            return
        if pod.informant.agents.sessions.all:
            pod.unused_s = now_s + _UNUSED_S
        elif now_s >= pod.unused_s:
            await self._forget(pod, "no agent is registered")
            return
        # Pods that came at once are not looked at in the same round for ever.
        every_s = self._settings.sample * self._rng.uniform(0.9, 1.1)
        due_s = (
            pod.informant.limits.looked_s + every_s
        )  # a page or a counter may have been a reason to look since
        if now_s < due_s:
            pod.look_s = due_s
            return
        pod.look_s = now_s + every_s
        self._look(pod)

    def _look(self, pod: ServedPod) -> None:
        try:
            pod.informant.limits.look()
        except (OSError, ValueError):
            pod.look_s = 0.0  # the next round finds out whether it has gone

    async def close(self) -> None:
        for pod in list(self.pods.values()):
            await self._forget(pod, "the program ends")
        await self._supervisor.stop()

    # ------------------------------------------------------------ own figures

    async def _healthz(self, _: Request) -> Reply | HangUp:
        return text(200, "ok")

    async def _metrics(self, _: Request) -> Reply | HangUp:
        return Reply(200, report.own_page(self.figures()), CONTENT_TYPE)

    def figures(self) -> dict[str, float]:
        """The node informant's own figures: those of its pods, added up."""
        found: dict[str, float] = {"parley_informant_pods": len(self.pods)}
        for pod in self.pods.values():
            for name, figure in pod.informant.figures().items():
                if not name.startswith("parley_informant_size_"):
                    found[name] = found.get(name, 0.0) + figure
        for limited in ("cpu", "memory"):
            found[f'parley_informant_pods_behind{{resource="{limited}"}}'] = sum(
                limited in pod.source.behind.names() for pod in self.pods.values()
            )
        found["parley_informant_resident_memory_bytes"] = protection.resident_bytes()
        return found


PORT: Final = 10302
SOCKET: Final = Path("/run/parley/informant.sock")
MAX_CONNECTIONS: Final = 512
ANSWER_S: Final = 3.5
"""How long a request may take, without the time for which an agent's `/id` is waited for."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """The command line of a node informant. `host` is an address, or `unix:` and the path of a socket. `once` is the format in which the findings
    are printed, instead of serving."""

    host: str
    port: int
    config: Path | None
    cgroup_root: Path | None
    advertise: str | None
    once: str | None


def main(command: NodeCommand) -> int:
    """Run the command; the exit code."""
    try:
        settings = load(command.config, NodeSettings) if command.config is not None else NodeSettings()
        setting = command.advertise or settings.advertise
        told = advertised(setting, command.host) if setting is not None else None
    except (SettingsError, AddressError) as error:
        click.echo(str(error), err=True)
        return 2
    if command.cgroup_root is not None:
        settings = settings.model_copy(update={"cgroup_root": command.cgroup_root})
    if not settings.cgroup_root.is_dir():
        click.echo(
            f"cgroupRoot: {settings.cgroup_root} is no directory; mount the host's cgroups there", err=True
        )
        return 2
    if command.once is not None:
        return asyncio.run(show(settings, command.once))
    return lifecycle.run(lambda stop: serve(stop, command.host, command.port, told, settings))


async def serve(
    stop: lifecycle.Stop, host: str, port: int, told: Advertised | None, settings: NodeSettings
) -> int:
    """Serve until the end; the exit code."""
    log = logs.logger("informant")
    _allow_open_files()
    async with HttpClient(max_connections=MAX_CONNECTIONS) as client:
        tree = CgroupTree(settings.cgroup_root)
        at_socket = host.startswith(UNIX)
        node = NodeInformant(tree, node_bytes(), settings, client, log, takes_sockets=at_socket)
        limits = ServerLimits(MAX_CONNECTIONS, settings.deadlines.id + ANSWER_S)
        server = Server(log, node.routes(), limits=limits)
        try:
            bound = await server.start(host, port)
        except OSError as error:
            where = host if at_socket else endpoint(host, port)
            click.echo(f"cannot listen on {where}: {error.strerror}", err=True)
            return 1
        told = told or Advertised(host)
        # At a socket the port means nothing to an agent, and is none that a published one would refuse.
        node.metrics_port = PORT if at_socket else told.port or bound
        gc.collect()
        gc.freeze()
        log.info(
            "serving",
            address=host if at_socket else f"http://{endpoint(host, bound)}",
            advertised=host if at_socket else told.endpoint(bound),
            cgroup_root=str(tree.root),
            cgroup_version=2 if tree.is_v2 else 1,
            resident_bytes=protection.resident_bytes(),
        )
        supervisor = Supervisor(log, random.Random())
        for name, child in node.children().items():
            supervisor.start(name, child)
        try:
            await stop.wait()
        finally:
            await server.close()
            await supervisor.stop()
            await node.close()
    return 0


async def show(settings: NodeSettings, output: str) -> int:
    seen = await diagnose.look_at_pods(CgroupTree(settings.cgroup_root))
    click.echo(diagnose.pods_as_json(seen) if output == "json" else "\n".join(diagnose.pods_as_text(seen)))
    return 0


def _allow_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
