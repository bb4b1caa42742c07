"""The scheduler plugin's HTTP side as published (v1.0 and v1.1), as far as a peer can notice."""

from dataclasses import dataclass, field

from tests.peers.gojson import AGENT_REQUEST, PLUGIN_RESPONSE, BadJSONError, Message, decode, encode, float32
from tests.peers.recording import (
    JSON,
    PLAIN,
    SNIFFED,
    Answer,
    DroppedError,
    Fault,
    Journal,
    RecordingServer,
    Request,
)
from tests.peers.resources import UINT16, Resources, range_text, version_text

MAX_BODY = 1024
ZERO, UNIT, TOTAL = Resources(0, 0), Resources(1, 1), Resources(16, 64)
PodName = tuple[str, str]  # namespace, name


class StartUpFailedError(Exception):
    """The plugin refuses to start; in its cluster it then crash-loops."""


class RefusedError(Exception):
    """The handler's error: its status and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class ClusterVM:
    """A VM as the cluster knows it, and a restarted plugin reads it again."""

    low: Resources
    high: Resources
    use: Resources
    always_migrate: bool = False


@dataclass(slots=True)
class SchedulerKnobs:
    versions: tuple[int, int] = (1, 2)
    total: Resources = TOTAL
    system: Resources = ZERO
    watermark: float = 0.7
    unit: Resources = UNIT
    do_migration: bool = False
    send_migrate: bool = False  # a `migrate` in every answer: allowed by the protocol, never sent by v0.1.13


@dataclass(slots=True)
class Amount:
    """One resource of a pod: uint16 each."""

    reserved: int
    buffer: int = 0
    pressure: int = 0


@dataclass(slots=True)
class Pod:
    cpu: Amount
    mem: Amount
    always_migrate: bool
    unit: Resources | None = None  # the compute unit last told; None until the first answer
    load: float | None = None
    queued: bool = False
    migrating: bool = False

    @property
    def reserved(self) -> Resources:
        return Resources(self.cpu.reserved, self.mem.reserved)


@dataclass(slots=True)
class NodeAmount:
    """One resource of the node; subtraction wraps as uint16 does."""

    total: int
    system: int
    watermark: int
    reserved: int = 0
    buffer: int = 0
    pressure: int = 0
    accounted: int = 0

    @property
    def remaining(self) -> int:
        return max(0, self.total - self.system - self.reserved)

    def too_much_pressure(self) -> bool:
        logical = max(0, self.reserved - self.watermark)
        slack = self.buffer + max(0, self.watermark - self.reserved) & UINT16
        return (logical + self.pressure & UINT16) > (self.accounted + slack & UINT16)


@dataclass(slots=True)
class State:
    """The plugin's memory: all of it is lost with the process."""

    cpu: NodeAmount
    mem: NodeAmount
    pods: dict[PodName, Pod] = field(default_factory=dict)

    def head(self) -> Pod | None:
        """The best candidate to migrate: with metrics before without, then the lowest load."""
        queued = [pod for pod in self.pods.values() if pod.queued]
        return min(queued, key=lambda p: (p.load is None, p.load or 0.0), default=None)

    def too_much_pressure(self) -> bool:
        if self.cpu.reserved <= self.cpu.watermark and self.mem.reserved < self.mem.watermark:
            return False
        return self.cpu.too_much_pressure() or self.mem.too_much_pressure()


class PublishedScheduler:
    """One node and its VM pods, behind `POST /`."""

    def __init__(
        self,
        knobs: SchedulerKnobs | None = None,
        vms: dict[PodName, ClusterVM] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.knobs = knobs or SchedulerKnobs()
        self.vms = vms if vms is not None else {}
        self.journal = Journal()
        self.faults: list[Fault] = []
        self.server = RecordingServer(self._handle, self.journal, self.faults, host, port)
        self.state = self._empty_state()

    @property
    def address(self) -> str:
        return self.server.address

    async def start(self) -> None:
        """Read the cluster (everything learnt from agents is forgotten) and serve."""
        self.state = self._load()
        await self.server.start()
        self.journal.note("listening", address=self.address)

    async def stop(self) -> None:
        await self.server.stop()

    async def die(self) -> None:
        await self.server.die()

    async def restart(self) -> None:
        await self.die()
        await self.start()

    def _empty_state(self) -> State:
        total, system = self.knobs.total, self.knobs.system
        return State(self._node(total.cpu, system.cpu), self._node(total.mem, system.mem))

    def _node(self, total: int, system: int) -> NodeAmount:
        reservable = float32(total - system)
        return NodeAmount(total, system, int(float32(float32(self.knobs.watermark) * reservable)))

    def _load(self) -> State:
        state = self._empty_state()
        for name, vm in self.vms.items():
            state.pods[name] = Pod(
                Amount(vm.high.cpu, vm.high.cpu - vm.use.cpu),
                Amount(vm.high.mem, vm.high.mem - vm.use.mem),
                vm.always_migrate,
            )
            state.cpu.reserved += vm.high.cpu  # the node's buffer stays 0: a defect, it wraps later
            state.mem.reserved += vm.high.mem
        cpu, mem = state.cpu, state.mem
        if cpu.reserved - cpu.buffer > cpu.total or mem.reserved > mem.total:
            self.journal.note("start-up failed", why="more is reserved than the node has")
            raise StartUpFailedError("more is reserved than the node has")
        return state

    def schedule(self, name: PodName, vm: ClusterVM) -> bool:
        """Reserve a new pod, as the scheduling cycle does: its use, not its maximum."""
        cpu, mem = self.state.cpu, self.state.mem
        if vm.use.cpu > cpu.remaining or vm.use.mem > mem.remaining:
            return False
        self.vms[name] = vm
        self.state.pods[name] = Pod(Amount(vm.use.cpu), Amount(vm.use.mem), vm.always_migrate)
        cpu.reserved += vm.use.cpu
        mem.reserved += vm.use.mem
        return True

    def delete(self, name: PodName) -> None:
        """The pod was deleted; the node's buffer keeps its part: a defect."""
        self.vms.pop(name, None)
        pod = self.state.pods.pop(name, None)
        if pod is None:
            return
        for node, amount in ((self.state.cpu, pod.cpu), (self.state.mem, pod.mem)):
            node.reserved = node.reserved - amount.reserved & UINT16
            node.pressure = node.pressure - amount.pressure & UINT16
            if pod.migrating:
                node.accounted = node.accounted - amount.reserved - amount.pressure & UINT16

    # One request.

    async def _handle(self, request: Request) -> Answer:
        if request.method != "POST":
            return Answer(400, b"must be POST", SNIFFED)  # 400 where 405 is meant
        try:
            message = decode(AGENT_REQUEST, request.body[:MAX_BODY])
        except BadJSONError:
            return Answer(400, b"bad JSON", PLAIN)
        try:
            return Answer(200, encode(PLUGIN_RESPONSE, self._permit(message)), JSON)
        except RefusedError as refusal:
            return Answer(refusal.status, str(refusal).encode(), PLAIN)

    def _permit(self, message: Message) -> Message:
        self._check_version(message["protoVersion"], message["metrics"])
        pod = self.state.pods.get((message["pod"]["namespace"], message["pod"]["name"]))
        if pod is None:
            raise RefusedError(404, "pod not found")
        migrates = self._decide_migration(pod, message["metrics"])
        self._account(pod, Resources.read(message["resources"]), migrates)
        if migrates:
            self._start_migration(pod)
        pod.unit = self.knobs.unit
        return {
            "permit": pod.reserved.message(),
            "migrate": {} if self.knobs.send_migrate else None,
            "resourceUnit": self.knobs.unit.message(),
        }

    def _check_version(self, version: int, metrics: Message | None) -> None:
        low, high = self.knobs.versions
        if version == 0:
            raise RefusedError(400, f"Invalid protocol version {version_text(0)}")
        if not low <= version <= high:
            need, got = range_text(self.knobs.versions), version_text(version)
            raise RefusedError(400, f"Protocol version mismatch: Need {need} but got {got}")
        if metrics is None and version < 2:
            raise RefusedError(400, f"nil metrics not supported for protocol version {version_text(version)}")

    def _decide_migration(self, pod: Pod, metrics: Message | None) -> bool:
        was_head = self.state.head() is pod  # the head before this request's metrics are in
        had_metrics = pod.load is not None
        pressed = was_head and self.state.too_much_pressure()
        if not pod.migrating:
            pod.queued = True
        if metrics is not None:
            pod.load = metrics["loadAvg1M"]
        wanted = pressed or (pod.always_migrate and had_metrics)
        return wanted and self.knobs.do_migration and not pod.migrating

    def _account(self, pod: Pod, asked: Resources, migrates: bool) -> None:
        if pod.migrating:
            if asked != pod.reserved:
                raise RefusedError(400, "cannot change resources: the pod is already migrating")
            return
        if pod.unit is not None:
            (cpus, left), (slots, over) = divmod(asked.cpu, pod.unit.cpu), divmod(asked.mem, pod.unit.mem)
            if left or over or cpus != slots:
                raise RefusedError(400, f"resources {asked} are no multiple of the compute unit {pod.unit}")
        _account_one(self.state.cpu, pod.cpu, asked.cpu, migrates)
        _account_one(self.state.mem, pod.mem, asked.mem, migrates)

    def _start_migration(self, pod: Pod) -> None:
        pod.queued, pod.migrating = False, True
        self.state.cpu.accounted += pod.cpu.reserved + pod.cpu.pressure  # memory is forgotten: a defect
        raise RefusedError(500, "migration is unimplemented")  # and the state stays changed: another


def _account_one(node: NodeAmount, pod: Amount, asked: int, migrates: bool) -> None:
    """One resource of the request (reference 2.3): the two do not know of each other."""
    old = pod.pressure
    if asked <= pod.reserved:
        node.reserved = node.reserved - (pod.reserved - asked) & UINT16
        pod.reserved, pod.pressure = asked, 0
    elif migrates:
        pod.pressure = asked - pod.reserved
        if pod.buffer:
            raise DroppedError("panic: buffer of a pod that asks for more and migrates")
    else:
        given = min(asked - pod.reserved, node.remaining)
        pod.pressure = asked - pod.reserved - given
        pod.reserved += given
        node.reserved += given
    node.pressure = node.pressure + pod.pressure - old & UINT16
    node.buffer = node.buffer - pod.buffer & UINT16
    pod.buffer = 0
