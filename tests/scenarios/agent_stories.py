"""A small language for stories about one agent and its VM, guest, scheduler and exporter, told over the virtual driver.

Each method of `AgentStory` is one happening, logged as a numbered line with its time. `then` says in which order the agent
did what since the last `then`: nothing else, and nothing more. Looks at the VM and readings of the metrics go on all the
time and are left out, unless a story is about them.
"""

from typing import Final
from uuid import UUID

from msgspec.structs import replace

from agent.core import events
from agent.core.condition import condition
from agent.core.policies.combined import Combined
from agent.core.policies.stepwise import LoadAverage
from agent.core.state import PermitRequest, RunnerState
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.sequence import Life
from protocol.values import Bounds, Resources
from tests.scenarios.telling import Telling
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import (
    FULL,
    INSTANCE,
    LIFE,
    OTHER_INSTANCE,
    UNSETTLED,
    UTILISATION,
    VM,
    Driver,
    grant,
    refusal,
)

QUIET: Final = (events.Observe, events.ReadMetrics)
LOAD_AVERAGE: Final = Combined((("load-average", LoadAverage()),))
POLICIES: Final = {"utilisation": UTILISATION, "load-average": LOAD_AVERAGE}


class AgentStory(Telling):
    """One story: an agent of a VM of so many units, at rest after its first words with everybody."""

    def __init__(self, units: float = 2, *, policy: str = "utilisation") -> None:
        self.driver = Driver(cu(units), policy=POLICIES[policy])
        super().__init__()
        self._told = 0
        self._room = cu(8)
        self._reasons: tuple[Reason, ...] = FULL
        self._instance = INSTANCE
        self._is_unsettled = False
        self._is_migrating = False
        self._needs = cu(0)
        self._sent: set[tuple[UUID, int]] = set()
        self._shows_quiet = False
        self.driver.scheduler = self._judge
        self.driver.guest = self._approve
        self._tell(f"an agent begins for a VM of {cu(units)}")

    # ------------------------------------------------------------ how it is told

    def _now_s(self) -> float:
        return self.driver.now_s

    def _words(self, action: events.Action) -> str:
        match action:
            case events.Fence():
                return "fences the VM"
            case events.Observe():
                return "looks at the VM"
            case events.RequestPermit(request):
                sent = (request.life.agent_id, request.number)
                again = " again" if sent in self._sent else ""
                self._sent.add(sent)
                return f"asks for {_units(request.resources)}{again}"
            case events.Resize(target):
                return f"resizes to {_units(target)}"
            case events.Register():
                return "registers"
            case events.AskDownscale(amount):
                return f"asks the guest to live with {_units(amount)}"
            case events.AnnounceUpscale(amount):
                return f"tells the guest of {_units(amount)}"
            case events.ReadMetrics():
                return "reads the metrics"
            case events.AskPolicies():
                return "asks its policies"

    def then(self, *did: str) -> None:
        """The agent did this since the last time, in this order."""
        new = self.driver.log[self._told :]
        self._told += len(new)
        shown = [each for each in new if self._shows_quiet or not isinstance(each, QUIET)]
        found = [self._words(each) for each in shown]
        self._tell(f"the agent {', '.join(did) or 'has done nothing'}")
        if found != list(did):
            raise self._broken(f"expected {list(did)}, found {found}")

    def tells_of_everything(self) -> None:
        """From now on looks and readings are told too."""
        self._shows_quiet = True

    # ------------------------------------------------------------ happenings

    def passes(self, seconds: float) -> None:
        self._tell(f"{seconds:g} s pass")
        self.driver.wait(seconds)

    def load_becomes(self, units: float) -> None:
        """From now on so many units are needed for the load."""
        self._tell(f"the load becomes one for {units:g} units")
        self.driver.busy_cpus = units * 0.75 - 0.1

    def node_has_room_for(self, units: float) -> None:
        """So much is permitted in all."""
        self._tell(f"the node has room for {units:g} units in all")
        self._room = cu(units)

    def replies_are_lost(self, *, are_lost: bool = True) -> None:
        """The network loses the scheduler's answers, or does not any more."""
        self._tell(f"the network loses {'the' if are_lost else 'no'} answers of the scheduler")
        self.driver.by_hand = {events.RequestPermit} if are_lost else set()

    def deadline_passes(self) -> None:
        """The request under way is given up."""
        self._tell("after 4 s nothing came")
        self.driver._pass(self.driver.now_s + 4)
        request = self.driver.request()
        self.driver.finish(
            events.RequestPermit, events.PermitFailed(request.number, "no answer within 4 s", 0.0)
        )

    def scheduler_restarts(self) -> None:
        """Another process answers, and does not know yet what anybody holds."""
        self._tell("the scheduler is restarted")
        self._instance, self._is_unsettled = OTHER_INSTANCE, True

    def scheduler_knows_another_agent(self) -> None:
        """Another life of this VM's agent that began later."""
        self._tell("the scheduler hears another agent of this VM that began later")
        later_ms = LIFE.started_at_ms + 5
        self.driver.scheduler = lambda request: refusal(
            request, 409, ErrorCode.AGENT_SUPERSEDED, started_ms=later_ms
        )

    def new_life_begins(self) -> None:
        """As the runner does after it was superseded: another agent ID, later than the one that was named."""
        self._tell("a new life begins, later than the one that was named")
        driver = self.driver
        assert driver.state.superseded_at_ms is not None
        life = Life(UUID(int=8, version=4), driver.state.superseded_at_ms + 1)
        driver.state = RunnerState(driver.state.vm, life, driver.now_s)
        driver.flying.clear()
        driver.scheduler = self._judge
        driver.settle()

    def migration(self, *, is_on: bool) -> None:
        """The VM is being moved away, or not any more."""
        self._tell("the scheduler moves the VM away" if is_on else "the migration has failed")
        self._is_migrating = is_on

    def guest_needs(self, units: float) -> None:
        """The guest gives up nothing below that."""
        self._tell(f"the guest needs {units:g} units")
        self._needs = cu(units)

    def informant_ends(self) -> None:
        """Nobody listens in the guest any more."""
        self._tell("the informant ends")
        self.driver.is_heard = False
        self.driver.by_hand = {events.ReadMetrics, events.Register}

    def informant_refuses_connections(self) -> None:
        """Calls that were tried meanwhile come back as failures."""
        self._tell("connections to the guest are refused")
        for action in list(self.driver.flying):
            if isinstance(action, events.ReadMetrics):
                self.driver.end(action, events.MetricsFailed("connection refused", True, 0.0))
            else:
                self.driver.end(action, events.RegisterFailed("connection refused", 0.0))
        self.driver.settle()

    def informant_is_back(self) -> None:
        """It knows nobody."""
        self._tell("the informant is there again")
        self.driver.is_heard, self.driver.by_hand = True, set()
        for action in list(self.driver.flying):
            self.driver.end(action, *self.driver._outcome(action))
        self.driver.settle()

    def guest_cannot_wait(self, *, cpu: bool = False, memory: bool = False) -> None:
        """`/try-upscale`; nothing wanted cancels."""
        what = " and ".join(name for name, is_on in (("CPU", cpu), ("memory", memory)) if is_on)
        self._tell(f"the guest cannot wait for more {what}" if what else "the guest can wait again")
        self.driver.try_upscale(cpu=cpu, memory=memory)

    def exporter_fails(self, *, is_failing: bool = True) -> None:
        """The exporter answers nothing useful, or does again."""
        self._tell(f"the exporter {'fails' if is_failing else 'answers again'}")
        self.driver.by_hand = {events.ReadMetrics} if is_failing else set()
        for action in list(self.driver.flying):
            if isinstance(action, events.ReadMetrics):
                self.driver.end(action, *self.driver._outcome(action))
        self.driver.settle()

    def reading_fails(self) -> None:
        self._tell("the reading of the metrics gives nothing")
        self.driver.finish(events.ReadMetrics, events.MetricsFailed("status 500", False, 0.0))

    def bounds_become(self, least: float, most: float) -> None:
        self._tell(f"the VM's bounds become {least:g} to {most:g} units")
        self.driver.tell(events.VmChanged(replace(VM, bounds=Bounds(cu(least), cu(most)))))

    def somebody_resizes(self, units: float) -> None:
        """Behind the agent's back."""
        self._tell(f"somebody resizes the VM to {units:g} units")
        self.driver.size = self.driver.target = cu(units)

    # ------------------------------------------------------------ what must have come of it

    def vm_has(self, units: float) -> None:
        self._expect("the VM must have", str(self.driver.size), str(cu(units)))

    def holds(self, units: float) -> None:
        self._expect("the agent must hold", str(self.driver.held()), str(cu(units)))

    def says(self, word: str, reason: str = "") -> None:
        driver = self.driver
        found = condition(driver.state, driver.plan(), driver.now_s, driver.timing)
        self._expect("the agent must say that it is", found.health.value, word)
        text = "; ".join(found.reasons)
        if reason not in text:
            raise self._broken(f"{reason!r} is not said in {text!r}")

    # ------------------------------------------------------------ the scheduler and the guest

    def _judge(self, request: PermitRequest) -> events.Event:
        now_s = self.driver.now_s
        if self._is_unsettled and request.instance != self._instance:
            permit = request.resources.min(request.claim)
            return grant(request, permit, sent_s=now_s, instance=self._instance, reasons=UNSETTLED)
        self._is_unsettled = False
        permit = request.resources.min(request.claim.max(self._room))
        if self._is_migrating:
            permit = request.resources.min(request.claim)
        reasons = () if permit == request.resources else self._reasons
        answered = grant(request, permit, sent_s=now_s, instance=self._instance, reasons=reasons)
        return replace(answered, migrate=self._is_migrating)

    def refuses_for(self, code: ReasonCode, message: str, retry_after_s: float | None = None) -> None:
        """Why what does not fit is refused from now on."""
        self._tell(f"what does not fit is refused because of {code.value}")
        self._reasons = (Reason(code, message, retry_after_s=retry_after_s),)

    def _approve(self, amount: Resources) -> events.Event:
        if self._needs.exceeds(amount):
            return events.DownscaleDenied(amount, "in use")
        return events.DownscaleApproved(amount)


def _units(amount: Resources) -> str:
    """`5` for five units, `3.5 CPU / 4 GiB` for what is no multiple."""
    cpus, gibibytes = amount.vcpu_milli / UNIT.vcpu_milli, amount.memory_bytes / UNIT.memory_bytes
    return f"{cpus:g}" if cpus == gibibytes else f"{cpus:g} CPU / {gibibytes:g} GiB"
