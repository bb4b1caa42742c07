"""The house: a scheduler and an agent as processes around real guests, looked at from every side at once.

    async with inhabited(directory, image.build(print), HouseRules(room), "db", "web") as house:
        await house.set_load("db", cpus=2)
        await house.rests("db", cpus=2)  # agent, ledger, QEMU and guest agree on that
        await house.keeps_the_law()

It is free of pytest: the benchmark and the soak live in it too. Every wait has the deadline of `tests.support.waiting`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from hosting import files
from hosting.client import HttpClient
from hosting.signed_link import OF_AGENT, SignedLink
from labs.vms.image import VmImage
from labs.vms.load.client import LoadClient, LoadError
from labs.vms.load.messages import LoadReport
from labs.vms.load.plan import GuestLoad
from labs.vms.machine import MIB, WORKLOAD_PORT, GuestWords, MachineSpec
from labs.vms.running import GuestSetup, RunningGuest
from labs.vms.starting import start
from parley.observer import Observer, Tail
from protocol.explaining import ProgressCode
from protocol.values import Resources
from tests.support.our_programs import Ours
from tests.support.vm_looks import ANSWER_S, GuestLook, UseWatch, VmLook, figures_of, guest_look
from tests.support.waiting import NOT_YET, shown

NAMESPACE: Final = "d"
NODE: Final = "n1"
SLOT_BYTES: Final = 128 * MIB
UNIT: Final = Resources(1000, SLOT_BYTES)
LEAST: Final = Resources(1000, 512 * MIB)
MOST: Final = Resources(4000, 512 * MIB + 8 * SLOT_BYTES)
MACHINE: Final = MachineSpec()
"""One vCPU and 512 MiB at its boot, and room for four and 1.5 GiB."""
WORDS: Final = GuestWords(workload=True, shell=True, quick=True)
TO_HOST: Final = "10.0.2.2"
"""The address by which a guest on a user-mode network calls the loopback of its host."""
QUICK: Final = {"cpuStableZone": 0.02, "cpuMixedZone": 0.02, "window": 1, "tailWindow": 0, "surgeWindow": 0}
"""Arguments of the agent's policy: nothing is kept for what was busy some minutes ago."""
TOLD_EVENTS: Final = 12
"""So many of the VM's last events a failure shows."""
_POD: Final = {"namespace": NAMESPACE, "name": "pod", "uid": "uid-pod", "node": NODE}
Document = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HouseVm:
    """A VM of the house: its guest, and the description that agent and scheduler are told.

    `uid` is the pod's, `uid-NAME` unless said otherwise.
    """

    name: str
    guest: RunningGuest
    uid: str = ""
    min: Resources = LEAST
    max: Resources = MOST

    def entry(self) -> Document:
        """The shared part of the files of agent and scheduler."""
        return {
            "namespace": NAMESPACE,
            "name": self.name,
            "uid": self.uid or f"uid-{self.name}",
            "min": self.min.written(),
            "max": self.max.written(),
            "computeUnit": UNIT.written(),
            "slotSize": f"{SLOT_BYTES // MIB}Mi",
        }


@dataclass(frozen=True, slots=True)
class HouseRules:
    """The rules of the house. Periods are those of the agent, in seconds, short enough that something happens soon.

    `handover_s` is the scheduler's: how long it reserves the maximum of a VM whose agent another life preceded.
    """

    room: Resources
    """The amount that all VMs may use together."""
    metrics_s: float = 0.5
    tick_s: float = 2.0
    down_window_s: float = 1.0
    silence_s: float = 3.0
    """After so long without an answer of the informant all plugged vCPUs count."""
    handover_s: float = 60.0
    utilisation: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the agent's policy that win over those of the house."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the names of VMs that have a policy of their own: its arguments that win over these."""
    agent_waits: Mapping[str, float] = field(default_factory=dict)
    """Waits of the agent's core that have no setting (`agent.core.timing.Timing`)."""


async def guest_of(directory: Path, image: VmImage, name: str, words: GuestWords = WORDS) -> RunningGuest:
    """Start a guest as the house has them; its files are in a directory of its own name. The caller stops it. Raises `GuestError`."""
    return await start(GuestSetup(MACHINE, image, directory / name, words))


@asynccontextmanager
async def inhabited(
    directory: Path, image: VmImage, rules: HouseRules, *names: str, words: GuestWords = WORDS
) -> AsyncIterator["VmHouse"]:
    """A house with a guest for each name, all of them settled. The guests end with the block, those that were moved in later too."""
    async with AsyncExitStack() as stack:
        house = VmHouse(directory / "house", rules)
        stack.push_async_callback(house.stop_guests)
        started = await asyncio.gather(
            *(guest_of(directory, image, name, words) for name in names), return_exceptions=True
        )
        for name, guest in zip(names, started, strict=True):
            if isinstance(guest, RunningGuest):
                house.move_in(HouseVm(name, guest))
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        await stack.enter_async_context(house)
        for name in names:
            await house.rests(name)
        yield house


class VmHouse:
    """The house. Its programs run inside an `async with`; its guests belong to the one who started them."""

    def __init__(self, directory: Path, rules: HouseRules) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.rules = rules
        self.directory = directory
        self.state = directory / "state"
        self.vms: dict[str, HouseVm] = {}
        self._guests: dict[RunningGuest, None] = {}
        self._pod: Resources | None = None
        self.observer = Observer({NODE: rules.room})
        self._tail = Tail(self.state / "changes.jsonl")
        self._to_guests = HttpClient(max_connections=16)
        self._links: dict[str, SignedLink] = {}
        self._looking = asyncio.Lock()
        self._running = AsyncExitStack()
        self._cluster = directory / "cluster.yaml"
        self._settings = directory / "agent.yaml"
        self.scheduler = Ours("scheduler", directory, *self._scheduler_arguments(), "--first-start")
        waits = dict(rules.agent_waits) or None
        self.agent = Ours("agent", directory, "--config", str(self._settings), waits=waits)

    async def __aenter__(self) -> Self:
        self._write()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._to_guests)
            await stack.enter_async_context(self.scheduler)
            self.scheduler.arguments = self._scheduler_arguments()  # it was the first start once only
            await stack.enter_async_context(self.agent)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill the agent, then the scheduler. Raises `AssertionError` if one of them logged a traceback."""
        await self._running.aclose()

    # ------------------------------------------------------------ who lives here

    def move_in(self, *vms: HouseVm) -> None:
        """These VMs exist from now on, or are described otherwise: agent and scheduler read their files again."""
        self.vms |= {vm.name: vm for vm in vms}
        self._guests |= {vm.guest: None for vm in vms}
        self._write()

    def change(self, name: str, **changes: Any) -> None:
        """Describe a VM otherwise, by fields of `HouseVm`."""
        self.move_in(replace(self.vms[name], **changes))

    def move_out(self, name: str) -> None:
        """The VM does not exist any more, by the word of the one who runs the VMs."""
        del self.vms[name]
        self._write()

    def place_pod(self, requests: Resources | None) -> None:
        """Something else on the node takes so much of its room; None takes it away again."""
        self._pod = requests
        self._write()

    async def stop_guests(self) -> None:
        """End every guest that ever lived here."""
        await asyncio.gather(*(guest.stop() for guest in self._guests))

    def _write(self) -> None:
        for path, content in (
            (self._cluster, self._cluster_file()),
            (self._settings, self._agent_file()),
        ):
            files.replace(path, json.dumps(content, indent=1).encode(), is_durable=False)

    def _scheduler_arguments(self) -> tuple[str, ...]:
        handover = ("--handover", f"{self.rules.handover_s:g}")
        return ("--cluster", str(self._cluster), *handover)

    def _cluster_file(self) -> Document:
        return {
            "nodes": [
                {"name": NODE, "allocatable": self.rules.room.written(), "computeUnit": UNIT.written()}
            ],
            "vms": [{**vm.entry(), "node": NODE} for vm in self.vms.values()],
            "pods": [] if self._pod is None else [{**_POD, "requests": self._pod.written()}],
        }

    def _agent_file(self) -> Document:
        rules = self.rules
        return {
            "node": NODE,
            "backend": "qemu",
            "qemu": {"silence": rules.silence_s},
            "scheduler": f"http://{self.scheduler.address}/",
            "stateDirectory": str(self.state),
            "advertise": f"{TO_HOST}:{self.agent.port}",
            "periods": {
                "metrics": rules.metrics_s,
                "tick": rules.tick_s,
                "downWindow": rules.down_window_s,
            },
            **self._policies(),
            "vms": [
                {
                    **vm.entry(),
                    "informant": vm.guest.informant_url,
                    "qmp": str(vm.guest.qmp_path),
                    **({"secretFile": str(vm.guest.secret_path)} if vm.guest.secret_path else {}),
                    "annotations": self._annotations(vm.name),
                }
                for vm in self.vms.values()
            ],
        }

    def _annotations(self, name: str) -> dict[str, str]:
        own = self.rules.own.get(name)
        return {} if own is None else {"parley.dev/config": json.dumps(self._policies(own))}

    def _policies(self, own: Mapping[str, Any] = MappingProxyType({})) -> Document:
        return {"policies": [{"name": "utilisation", "args": {**QUICK, **self.rules.utilisation, **own}}]}

    # ------------------------------------------------------------ load

    async def set_load(
        self, name: str, *, cpus: float = 0.0, memory_bytes: int = 0, **more: int
    ) -> LoadReport:
        """Set the use of the guest's workload from now on; `memory_bytes_per_s` says how fast memory grows."""
        load = GuestLoad(cpus=cpus, memory_bytes=memory_bytes, **more)
        knob = self._knob(name)
        return await shown(f"the load generator of {name}", lambda: knob.set(load), (*NOT_YET, LoadError))

    async def load(self, name: str) -> LoadReport:
        """The use of the guest's workload."""
        return await shown(f"the load of {name}", self._knob(name).read, (*NOT_YET, LoadError))

    def _knob(self, name: str) -> LoadClient:
        return LoadClient(self._to_guests, f"{self.vms[name].guest.address}:{WORKLOAD_PORT}")

    # ------------------------------------------------------------ what everybody shows

    async def status(self) -> dict[str, Document]:
        """The agent's `/v1/vms`, by the VM's name."""
        return {vm["vm"].partition("/")[2]: vm for vm in (await self.agent.get("/v1/vms"))["vms"]}

    async def details(self, name: str) -> Document:
        """The agent's page of one VM, with what happened last (`journal`)."""
        found: Document = await self.agent.get(f"/v1/vms/{NAMESPACE}/{name}")
        return found

    async def rows(self) -> dict[str, Document]:
        """The rows of `node` that are VMs, by the VM's name."""
        rows = (await self.node())["rows"]
        return {row["name"].partition("/")[2]: row for row in rows if row["kind"] == "vm"}

    async def node(self) -> Document:
        """The scheduler's `/v1/nodes/NODE`."""
        found: Document = await self.scheduler.get(f"/v1/nodes/{NODE}")
        return found

    async def guest(self, name: str) -> GuestLook:
        """The view of QEMU and the guest. Raises `QmpClosedError` if QEMU has ended."""
        guest, signed = self.vms[name].guest, None
        if guest.secret_path is not None:
            signed = self._links.setdefault(name, SignedLink(guest.secret_path, OF_AGENT))
        async with self._looking:
            return await guest_look(guest.control, self._to_guests, guest.informant_url, signed)

    async def figures(self, name: str) -> dict[str, float]:
        url = f"{self.vms[name].guest.informant_url}/metrics"
        return figures_of(await self._to_guests.call("GET", url, deadline_s=ANSWER_S))

    async def look(self, name: str) -> VmLook:
        """One VM from every side; each page is its own moment."""
        status, rows, guest = await asyncio.gather(self.status(), self.rows(), self.guest(name))
        return VmLook(status[name], rows[name], guest)

    # ------------------------------------------------------------ waiting

    async def shows(self, what: str, name: str, condition: Callable[[Document], object]) -> Document:
        """Wait until the agent shows something of a VM."""

        async def look() -> Document | None:
            found = (await self.status())[name]
            return found if condition(found) else None

        return await self._shown(f"{what} of {name}", name, look)

    async def looks(self, what: str, name: str, condition: Callable[[VmLook], object]) -> VmLook:
        """Wait until a VM looks so, from any side."""

        async def look() -> VmLook | None:
            found = await self.look(name)
            return found if condition(found) else None

        return await self._shown(f"{what} of {name}", name, look)

    async def rests(self, name: str, *, cpus: int | None = None, memory_bytes: int | None = None) -> VmLook:
        """Wait until the VM has the size that the agent wants, or the given one, and agent, ledger, QEMU and guest agree on it."""

        def is_there(look: VmLook) -> bool:
            use = look.guest.use
            return (
                look.drift() == ""
                and look.status["goal"] == look.status["size"]
                and (cpus is None or use.vcpu_milli == cpus * 1000)
                and (memory_bytes is None or use.memory_bytes == memory_bytes)
            )

        wanted = f"{cpus or 'some'} vCPUs and {memory_bytes // MIB if memory_bytes else 'some'} MiB at rest"
        return await self.looks(wanted, name, is_there)

    async def negotiates(self, name: str, code: ProgressCode) -> str:
        """Wait until the scheduler explains a VM's part in a negotiation so; its words."""

        async def look() -> str | None:
            page = await self.scheduler.get(f"/v1/explain/{NAMESPACE}/{name}")
            found = page["negotiation"]
            return found["message"] if found is not None and found["code"] == code else None

        return await self._shown(f"{code} of {name}", name, look)

    async def _shown(self, what: str, name: str, look: Callable[[], Awaitable[T | None]]) -> T:
        try:
            return await shown(what, look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._told(name)}") from error

    async def _told(self, name: str) -> str:
        told = []
        for what, page in (
            ("the agent", self.details(name)),
            ("the scheduler", self.node()),
            ("its decisions", self.scheduler.get(f"/v1/explain/{NAMESPACE}/{name}")),
            ("the guest", self.guest(name)),
        ):
            try:
                shown_page: Any = await page
            except Exception as error:  # noqa: BLE001 - what cannot be shown must not hide the failure
                shown_page = repr(error)
            if isinstance(shown_page, dict) and "journal" in shown_page:
                shown_page["journal"] = shown_page["journal"][-TOLD_EVENTS:]
            told.append(f"{what}: {shown_page}")
        return "\n".join(told)

    # ------------------------------------------------------------ the law

    def fold(self) -> Observer:
        """Take the lines of the change log that are new."""
        for line in self._tail.lines():
            self.observer.fold(line)
        return self.observer

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[UseWatch]:
        """Look at all guests, again and again, while the block runs; afterwards no look may have shown more in use than the room."""
        watch = UseWatch(self.rules.room, lambda: {name: self.guest(name) for name in self.vms})
        watching = asyncio.create_task(watch.run(), name="watch of the guests")
        try:
            yield watch
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        if not watching.cancelled():
            watching.result()
        assert watch.looks, "nobody looked"
        assert not watch.faults, watch.faults

    async def keeps_the_law(self) -> None:
        """The ledger adds up and is not over-full, and no line of the change log overcommits the node."""
        faults = [fault async for fault in self._faults()]
        assert not faults, faults

    async def _faults(self) -> AsyncIterator[str]:
        for fault in (await self.scheduler.get("/v1/audit"))["faults"]:
            yield f"audit: {fault}"
        over = (await self.node())["overFullBecauseOf"]
        if over:
            yield f"the node is over-full because of {over}"
        observer = self.fold()
        for each in observer.overcommits:
            yield f"change log: {each}"
        if self._tail.is_broken or not observer.lines:
            yield "the change log was cut, or is empty"
