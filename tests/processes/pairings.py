"""Our programs as processes beside published peers in the test: what every pairing of them needs.

Where a wait has no setting of its own, the program is started with a shorter one (`waits`, see `tests/support/our_programs.py`).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.observer import Observer, Tail
from protocol.values import Resources as Amount
from tests.peers.published_agent import VM, PublishedAgent
from tests.peers.published_informant import InformantKnobs
from tests.peers.published_scheduler import ClusterVM
from tests.peers.recording import Exchange, Journal
from tests.peers.resources import Resources
from tests.peers.support import agent_knobs, informant_knobs
from tests.support.amounts import GIB
from tests.support.our_programs import Ours
from tests.support.processes import write_json
from tests.support.waiting import shown, until

NAMESPACE, NODE = "d", "n1"
UNIT, MOST, NOTHING = Resources(1, 1), Resources(4, 4), Resources(0, 0)
Entry = dict[str, Any]

calm = informant_knobs
"""Knobs of a published informant whose limits a loaded machine keeps."""
quick = agent_knobs
"""Knobs of a published agent with waits of milliseconds."""


async def heard(journal: Journal, request: str) -> None:
    """Wait until a peer was asked `METHOD /path`."""
    await until(lambda: journal.received(request))


async def in_use(agent: PublishedAgent) -> None:
    await until(lambda: agent.mode == "running")


def quantities(amount: Resources) -> dict[str, str]:
    """An amount as files and pages write it, with slots of 1 GiB."""
    return {"cpu": str(amount.cpu), "memory": f"{amount.mem}Gi"}


def units(count: int) -> Resources:
    """So many CPUs and as many slots."""
    return Resources(count, count)


# ---------------------------------------------------------------- our programs


class OurAgent(Ours):
    """`parley-agent` with simulated VMs; its state and settings lie in `directory`."""

    def __init__(
        self,
        directory: Path,
        scheduler: str,
        vms: Iterable[Entry],
        waits: dict[str, float] | None = None,
        **more: object,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.state = directory / "state"
        content = {
            "node": NODE,
            "scheduler": f"http://{scheduler}/",
            "stateDirectory": str(self.state),
            "metricsPrefix": "host_",
            "policies": ["load-average"],
            "periods": {"metrics": 0.1, "tick": 0.3, "downWindow": 0.2},
            "resizeDelay": 0.02,
            "vms": list(vms),
        }
        config = write_json(directory / "agent.yaml", content | more)
        super().__init__("agent", directory, "--config", str(config), waits=waits)

    async def vms(self) -> dict[str, dict[str, Any]]:
        return {vm["vm"].partition("/")[2]: vm for vm in (await self.get("/v1/vms"))["vms"]}

    async def shows(
        self, what: str, vm: str, condition: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = (await self.vms())[vm]
            return found if condition(found) else None

        try:
            return await shown(f"{what} of {vm}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}: {(await self.vms()).get(vm)}") from error

    async def reaches(self, size: Resources, *vms: str) -> None:
        """Wait until VMs have a size and want no other."""
        wanted = quantities(size)
        for vm in vms:
            await self.shows(
                f"size {size}", vm, lambda found: found["size"] == found["target"] == found["goal"] == wanted
            )

    async def listens(self, *vms: str) -> None:
        """Wait until informants have resumed it."""
        for vm in vms:
            await self.shows("an active informant", vm, lambda found: found["informant"] == "active")

    def keeps_the_law(self, room: Resources) -> None:
        """In its change log the node was never overcommitted, and nothing grew that was not held."""
        observer = Observer({NODE: Amount(room.cpu * 1000, room.mem * GIB)})
        held: dict[str, Amount] = {}
        had: dict[str, Amount] = {}
        for line in Tail(self.state / "changes.jsonl").lines():
            observer.fold(line)
            if line["kind"] == "daemon":
                held.clear()
                continue
            vm, now = line["vm"], Amount(line["cpu"], line["memory"])
            if line["kind"] == "held":
                held[vm] = now
                continue
            if line["kind"] == "target" and vm in had:
                assert now.fits_in(had[vm].max(held.get(vm, Amount(0, 0)))), line
            had[vm] = now
        assert observer.lines > 0
        assert observer.overcommits == []


def entry(
    name: str,
    informant: str,
    low: Resources = UNIT,
    high: Resources = MOST,
    unit: Resources = UNIT,
    initial: Resources | None = None,
) -> Entry:
    """A VM of the agent's settings."""
    return {
        "namespace": NAMESPACE,
        "name": name,
        "uid": f"uid-{name}"[:64],
        "informant": f"http://{informant}",
        "min": quantities(low),
        "max": quantities(high),
        "computeUnit": quantities(unit),
        "slotSize": "1Gi",
        "initial": quantities(initial or low),
    }


@dataclass
class ClusterFile:
    """The cluster as our scheduler reads it: one node, and VMs with the sizes that they really have (or without)."""

    path: Path
    room: Resources
    unit: Resources = UNIT
    vms: dict[str, Entry] = field(default_factory=dict)
    uses: dict[str, Resources] = field(default_factory=dict)
    largest: Resources = NOTHING

    def add(
        self, *names: str, low: Resources = UNIT, high: Resources = MOST, size: Resources | None = None
    ) -> None:
        for name in names:
            self.vms[name] = {
                "namespace": NAMESPACE,
                "name": name,
                "uid": f"uid-{name}",
                "node": NODE,
                "min": quantities(low),
                "max": quantities(high),
                "slotSize": "1Gi",
            }
            if size is not None:
                self.use(name, size)
        self.write()

    def published(self, name: str, size: Resources = UNIT) -> VM:
        """A VM object for a published agent; the file shows what it patches."""
        self.add(name, size=size)
        made = VM(UNIT, MOST, size, NAMESPACE, name)

        def patched(use: Resources) -> None:
            self.use(name, use)
            self.write()

        made.on_patch = patched
        return made

    def use(self, name: str, size: Resources) -> None:
        """The VM really has this size from now on."""
        self.vms[name] |= {"size": quantities(size), "target": quantities(size)}
        self.uses[name] = size
        total = Resources(
            sum(use.cpu for use in self.uses.values()), sum(use.mem for use in self.uses.values())
        )
        self.largest = self.largest.upper(total)

    def write(self) -> None:
        node = {"name": NODE, "allocatable": quantities(self.room), "computeUnit": quantities(self.unit)}
        new = write_json(self.path.with_suffix(".new"), {"nodes": [node], "vms": list(self.vms.values())})
        new.replace(self.path)


class OurScheduler(Ours):
    """`parley-scheduler` over a cluster file."""

    def __init__(
        self,
        directory: Path,
        room: int,
        *more: str,
        vms: tuple[str, ...] = (),
        waits: dict[str, float] | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.cluster = ClusterFile(directory / "cluster.yaml", units(room))
        self.cluster.add(*vms)
        super().__init__("scheduler", directory, "--cluster", str(self.cluster.path), *more, waits=waits)

    async def rows(self) -> dict[str, dict[str, Any]]:
        """The scheduler's rows by the names of their VMs."""
        return {row["name"].partition("/")[2]: row for row in (await self.get(f"/v1/nodes/{NODE}"))["rows"]}

    async def reserved(self, vm: str) -> Resources:
        kept = (await self.rows())[vm]["reserved"]
        return Resources(int(kept["cpu"]), int(kept["memory"].removesuffix("Gi")))

    async def keeps_the_law(self) -> None:
        """Its ledger adds up, and what published agents used always fitted the node."""
        assert await self.get("/v1/audit") == {"faults": []}
        shown_node = await self.get(f"/v1/nodes/{NODE}")
        assert shown_node["overFullBecauseOf"] == []
        assert not self.cluster.largest.any_greater(self.cluster.room)


class OurInformant(Ours):
    """`parley-informant` with a steady synthetic load."""

    def __init__(
        self, directory: Path, load: float, *more: str, settings: dict[str, Any] | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        config = directory / "informant.yaml"
        write_json(config, settings or {})  # every JSON file is one of YAML
        self.more = ("--config", str(config), *more)
        super().__init__("informant", directory, *self._with(load))

    def _with(self, load: float) -> tuple[str, ...]:
        return ("--workload", "step", "--low", str(load), "--high", str(max(load, 0.2)), *self.more)

    async def load(self, load: float) -> None:
        """A restart, because the load is an option: it comes back at its address and knows nobody."""
        self.arguments = self._with(load)
        await self.restart()


# ---------------------------------------------------------------- published peers


def knobs(load: float = 0.5, **changes: Any) -> InformantKnobs:
    """A calm published informant with a steady load; 0.5 suits one CPU."""
    return calm(load=(load, load), **changes)


def pod(name: str) -> tuple[str, str]:
    """The name of a pod as published schedulers keep it."""
    return NAMESPACE, name


def known(size: Resources = UNIT, low: Resources = UNIT, high: Resources = MOST) -> ClusterVM:
    """A VM as a published scheduler knows it."""
    return ClusterVM(low, high, size)


def bodies(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    return [json.loads(exchange.body) for exchange in exchanges]


def asked(journal: Journal) -> list[dict[str, Any]]:
    """The AgentRequests that a published scheduler received."""
    return bodies(x for x in journal.exchanges if x.side == "received" and x.method == "POST")


def called(journal: Journal, end: str) -> list[Exchange]:
    """The calls of a published informant whose path ends so."""
    return [
        exchange for exchange in journal.exchanges if exchange.side == "sent" and exchange.path.endswith(end)
    ]
