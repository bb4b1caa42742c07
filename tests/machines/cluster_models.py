"""Nodes, VMs and other pods as they really are, beside what anybody believes of them."""

from dataclasses import dataclass, field

from agent.core.model import YieldMode
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from tests.machines.agent_models import ExtendedAgent
from tests.machines.core_port import Holder, Observation, PodSpec, VmSpec, vm_holder, vm_spec
from tests.machines.ledger_observer import NodeAccount, Observer, VmAccount
from tests.machines.published_models import PublishedAgent

GIB = 2**30


def cu(cpus: float, gib: float | None = None) -> Resources:
    """`cpus` CPUs and as many GiB, or `gib` GiB."""
    return Resources(round(cpus * 1000), round((cpus if gib is None else gib) * GIB))


UNIT = cu(1)


@dataclass(slots=True, eq=False)
class Node:
    """A node. `serves_published` says that callers without the extension are served there.

    `born_with` is what could be reserved at first; later configurations differ from it a little.
    """

    name: str
    reservable: Resources
    serves_published: bool
    account: NodeAccount
    born_with: Resources = field(init=False)
    allocatable: Resources = field(init=False)

    def __post_init__(self) -> None:
        self.born_with = self.reservable
        self.allocatable = self.reservable * 2

    @property
    def system(self) -> Resources:
        """The amount that the configuration keeps from VMs, so that `reservable` is what remains."""
        return self.allocatable - self.reservable


@dataclass(slots=True, eq=False)
class OtherPod:
    """A pod that is no VM; it uses its requests from its birth to its end, told or not. One that is `is_unseen` has bypassed the
    scheduler, until that is told of it."""

    spec: PodSpec
    node: Node
    is_told: bool = False
    has_ended: bool = False
    is_unseen: bool = True


@dataclass(slots=True, eq=False)
class Command:
    """A resize that was sent: it sets the target before `until_s`, or never.

    One of an agent with the extension is a conditional write: void when somebody else (an edit, a published agent)
    writes first."""

    number: int
    target: Resources
    until_s: float
    is_published: bool


@dataclass(slots=True, eq=False, frozen=True)
class Snapshot:
    """A VM at one moment, as a read that began then will show it. `edits` and `version` count the external edits and all changes."""

    uid: str
    reading: Observation
    edits: int
    version: int


@dataclass(slots=True, eq=False)
class Vm:
    """A VM as it is. `agents` are its living runners with the extension, the newest last.

    `writes` counts the targets that were set by others than the agents with the extension, `edits` those by nobody
    whom the scheduler knows. `is_tied` says that its resources are, whatever its agents ask for; `asks_apart` is the kind
    that its next life asks for. It needs `needs` without comfort (None: all that it asks for), and gives to others as `yields` says, unless its
    guest `refuses`. `fences` counts the fences: a command of an agent that does not know the last one is void.
    """

    name: PodName
    uid: str
    node: Node
    bounds: Bounds
    unit: Resources | None
    pool: str | None
    is_whole: bool
    observer: Observer
    account: VmAccount
    is_tied: bool = False
    asks_apart: bool = False
    priority: int = 0
    yields: YieldMode = YieldMode.SLACK
    needs: Resources | None = None
    refuses: bool = False
    spec: VmSpec = field(init=False)
    holder: Holder = field(init=False)
    size: Resources = ZERO
    target: Resources = ZERO
    commands: list[Command] = field(default_factory=list)
    agents: list[ExtendedAgent] = field(default_factory=list)
    published: PublishedAgent | None = None
    cached: Snapshot | None = None
    writes: int = 0
    edits: int = 0
    fences: int = 0
    version: int = 0
    told_version: int = 0
    untold_s: float = 0.0
    heard_until_s: float = 0.0
    is_gone: bool = False
    is_vanished: bool = False
    vanished_with: Resources = ZERO

    def __post_init__(self) -> None:
        self.holder = vm_holder(self.uid)
        self.set_bounds(self.bounds)

    def set_bounds(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.spec = vm_spec(
            self.name, self.uid, self.node.name, bounds, self.unit, self.pool, is_tied=self.is_tied
        )

    def set_pool(self, pool: str | None) -> None:
        self.pool = pool
        self.set_bounds(self.bounds)

    def set_tied(self, *, is_tied: bool) -> None:
        """The VM's resources are tied from now on, whatever is asked for, or not any more."""
        self.is_tied = is_tied
        self.set_bounds(self.bounds)

    def set_size(self, amount: Resources) -> None:
        if amount != self.size:
            self.size = amount
            self.version += 1
            self.observer.size(self.account, amount)

    def set_target(self, amount: Resources) -> None:
        if amount != self.target:
            self.target = amount
            self.version += 1
            self.observer.target(self.account, amount)

    def send(self, command: Command) -> None:
        self.commands.append(command)
        self.observer.sent(self.account, command.number, command.target)

    def end(self, command: Command, *, lands: bool) -> None:
        """A command takes effect, or it never will."""
        self.commands.remove(command)
        if lands:
            if command.is_published and self.agents:
                self.edited(command.target)  # for the other kind of agent it is no better than an edit
            self.set_target(command.target)
            if command.is_published:
                self.written()
        self.observer.ended(self.account, command.number)
        if self.published is not None:
            self.published.resized(command, lands=lands)

    def fails(self, command: Command) -> None:
        """The sender of a command is told that it failed; it may take effect all the same, until its time is over."""
        if self.published is not None:
            self.published.resized(command, lands=False)

    def edited(self, target: Resources) -> None:
        """Somebody whom the scheduler does not follow sets the target: where it rises, that is a documented cause."""
        self.edits += 1
        if target.exceeds(self.size.max(self.target)):
            self.observer.edited(self.account, target.max(self.size))

    def written(self) -> None:
        """Somebody else than the agent with the extension wrote: its commands are conditional on that, so they are void."""
        self.writes += 1
        self._drop_commands()

    def fence(self) -> None:
        """No command that an agent with the extension sent before this can take effect any more."""
        self.fences += 1
        self._drop_commands()

    def _drop_commands(self) -> None:
        """Nothing that an agent with the extension has sent takes effect any more."""
        for command in [command for command in self.commands if not command.is_published]:
            self.end(command, lands=False)

    def expire(self, now_s: float) -> None:
        """Commands past their deadline never land."""
        for command in [command for command in self.commands if now_s >= command.until_s]:
            self.end(command, lands=False)

    def snapshot(self, now_s: float) -> Snapshot:
        """The result of a read that begins now."""
        self.cached = Snapshot(self.uid, Observation(self.size, self.target, now_s), self.edits, self.version)
        return self.cached
