"""A small cluster around one `Core`, for tests: nodes of n1, VMs of one namespace, callers of both kinds.

After every input the whole core is audited, so that every test checks the identity of sums and rows.
"""

from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

from protocol.extension import RawRequest, RequestExtension
from protocol.reasons import ReasonCode
from protocol.values import ZERO, Bounds, Observation, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, Metrics, PodName, SlotResources
from scheduler.permits.core import decision, events
from scheduler.permits.core.core import Core
from scheduler.permits.core.ledger import Cause, Floor, NodeAccount, OverCause, RowState
from scheduler.permits.core.model import Holder, Kind, NodeSpec, PodSpec, PoolSpec, ReservationSpec, VmSpec
from scheduler.permits.core.rules import GrowthSwitches, NodeOverride, NodeRules, Rules, Watermark
from scheduler.permits.core.state import SchedulerConfig, VmRecord
from tests.support.amounts import GIB, UNIT, cu

HERE = UUID(int=1)
"""The scheduler process under test."""
ELSEWHERE = UUID(int=2)
"""Another scheduler process."""
AGENT = UUID(int=10)
NEXT_AGENT = UUID(int=11)
THIRD_AGENT = UUID(int=12)
METRICS = Metrics(0.5, 0.25)
EVERYWHERE = SchedulerConfig(HERE, is_first_start=True, published_agents=("*",))


def pod(name: str) -> PodName:
    return PodName(name, "default")


def without_notices(outputs: tuple[events.Output, ...]) -> list[events.Output]:
    """What came of an input, but for what agents are told that did not ask, and reads on behalf of those who wait."""
    notices = events.ReadNeeded | events.RoomOffered | events.YieldAsked | events.YieldEnded
    return [output for output in outputs if not isinstance(output, notices)]


class World:
    """One core with one node `n1` of `reservable`, more by `node`; and a pool `blue` without limits."""

    def __init__(
        self,
        reservable: Resources | None = None,
        *,
        config: SchedulerConfig | None = None,
        unit: Resources | None = UNIT,
    ) -> None:
        self.core = Core(config or SchedulerConfig(HERE, is_first_start=True))
        self.sent: Counter[tuple[str, UUID]] = Counter()
        self.node("n1", reservable or cu(10), unit)
        self.apply(events.PoolSeen(PoolSpec("blue", UNIT)))

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        outputs = self.core.apply(event)
        assert self.core.audit() == []
        return outputs

    # ------------------------------------------------------------ the cluster

    def node(self, name: str, reservable: Resources, unit: Resources | None = UNIT) -> None:
        """The cluster shows a node."""
        self.apply(events.NodeSeen(NodeSpec(name, reservable, unit)))

    def vm(
        self,
        name: str = "vm",
        use: Resources | None = UNIT,
        *,
        most: Resources | None = None,
        node: str = "n1",
        uid: str | None = None,
        is_new: bool = True,
        at: float = 0.0,
        unit: Resources | None = None,
        slot: int | None = GIB,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> None:
        """The cluster shows a VM; `use` None where it shows no sizes."""
        bounds = Bounds(UNIT, most or cu(8))
        spec = VmSpec(
            pod(name), uid or f"uid-{name}", node, bounds, slot, unit, pool=pool, reservation=reservation
        )
        reading = Observation(use, use, at) if use is not None else None
        self.apply(events.VmSeen(spec, reading, at, is_new=is_new))

    def see(self, name: str, reading: Observation | None, *, at: float, **changes: object) -> None:
        """The cluster shows a known VM again, with `changes` of its spec."""
        spec: VmSpec = replace(self.record(name).spec, **changes)  # type: ignore[arg-type]  # fields of any type
        self.apply(events.VmSeen(spec, reading, at))

    def see_ended(self, name: str, *, at: float) -> tuple[events.Output, ...]:
        """The cluster shows that a VM's pod has ended; its UID is `uid-name`."""
        spec = VmSpec(pod(name), f"uid-{name}", "n1", Bounds(UNIT, cu(8)), GIB, terminal=True)
        return self.apply(events.VmSeen(spec, Observation(UNIT, UNIT, at), at))

    def read(self, name: str, use: Resources, *, at: float, target: Resources | None = None) -> None:
        """A read of the cluster, begun at `at`, shows `use` (and is moving to `target`)."""
        self.see(name, Observation(use, target or use, at), at=at)

    def other_pod(
        self, name: str, requests: Resources, node: str = "n1", reservation: str | None = None
    ) -> PodSpec:
        """The cluster shows a pod that is no VM."""
        spec = PodSpec(pod(name), f"uid-{name}", node, requests, reservation=reservation)
        self.apply(events.PodSeen(spec))
        return spec

    def reserve(
        self, amount: Resources, *, node: str = "n1", uid: str = "r1", **more: Any
    ) -> ReservationSpec:
        """The cluster shows a reservation."""
        spec = ReservationSpec(uid, f"default/{uid}", node, amount, **more)
        self.apply(events.ReservationSeen(spec))
        return spec

    def tick(self, at: float) -> list[str]:
        """The clock; the names of the pods that need a read."""
        wanted = []
        for output in self.apply(events.ClockTicked(at)):
            assert isinstance(output, events.ReadNeeded)
            wanted.append(output.pod.name)
        return wanted

    # ------------------------------------------------------------ agents with the extension

    def request(
        self,
        name: str,
        want: Resources,
        *,
        seq: int | None = None,
        claim: Resources | None = None,
        agent: UUID = AGENT,
        started: int = 1000,
        names: UUID | None = HERE,
        unit: Resources | None = None,
        uid: str | None = None,
        metrics: Metrics | None = METRICS,
        version: int = 2,
        apart: bool = False,
        token: str | None = None,
        **means: Any,
    ) -> AgentRequest:
        """A request with the extension; `seq` counts by itself, `names` is the scheduler that it names. `means` are need, spare and priority."""
        self.sent[name, agent] = seq if seq is not None else self.sent[name, agent] + 1
        extension = RequestExtension(
            agent,
            started,
            uid or f"uid-{name}",
            self.sent[name, agent],
            0,
            names,
            RawRequest(want, claim, unit, True if apart else None),
            token,
            **means,
        )
        return AgentRequest(PluginProtoVersion(version), pod(name), SlotResources(1, 1), metrics, extension)

    def send(
        self,
        request: AgentRequest,
        *,
        at: float = 0.0,
        look: events.Look | None = None,
        since: float | None = None,
    ) -> events.Answer:
        """The answer of the core to one request; to one that arrived at `since`, on a pass with a look."""
        (answer,) = without_notices(self.apply(events.RequestArrived(7, request, at, look, since)))
        assert isinstance(answer, events.Answer)
        return answer

    def decide(self, request: AgentRequest, *, at: float = 0.0) -> events.Decided:
        """The decision about a request that is answered with a permit."""
        answer = self.send(request, at=at)
        assert isinstance(answer, events.Decided), answer
        return answer

    def permit(self, request: AgentRequest, *, at: float = 0.0) -> Resources:
        """The permit that a request gets; for callers with the extension `raw` says the same."""
        answer = self.decide(request, at=at)
        extension = decision.message(answer).extension
        assert extension is not None
        assert extension.permit == answer.permit
        return answer.permit

    def refusal(self, request: AgentRequest, *, at: float = 0.0) -> events.Refused:
        answer = self.send(request, at=at)
        assert isinstance(answer, events.Refused), answer
        return answer

    # ------------------------------------------------------------ callers without the extension

    def published(
        self,
        name: str,
        want: SlotResources,
        *,
        at: float = 0.0,
        use: Resources | None = UNIT,
        metrics: Metrics | None = METRICS,
        version: int = 2,
    ) -> events.Answer:
        """The answer to a caller without the extension, after the fresh look that shows `use` (None: no sizes).

        One that is held waits until nobody waits any more; `at` is when it is answered then.
        """
        request = AgentRequest(PluginProtoVersion(version), pod(name), want, metrics)
        since = at - self.core.config.hold_first_s
        first = self.send(request, at=since)
        if not isinstance(first, events.LookNeeded):
            return first
        reading = Observation(use, use, at) if use is not None else None
        if self.core.vms.find(pod(name)) is not None:
            self.see(name, reading, at=at)
        return self.send(request, at=at, look=events.Look(found=True, reading=reading), since=since)

    # ------------------------------------------------------------ pools, placements, configuration

    def take(
        self,
        request: AgentRequest,
        ticket: int,
        *,
        at: float = 0.0,
        look: events.Look | None = None,
        since: float | None = None,
    ) -> tuple[events.Output, ...]:
        """All outputs of the core for one request with a ticket of its own."""
        return self.apply(events.RequestArrived(ticket, request, at, look, since))

    def take_published(
        self, name: str, want: SlotResources, ticket: int, *, at: float = 0.0, use: Resources = UNIT
    ) -> tuple[events.Output, ...]:
        """All outputs for one request without the extension, after a fresh look that shows `use`."""
        reading = Observation(use, use, at)
        self.see(name, reading, at=at)
        request = AgentRequest(PluginProtoVersion(2), pod(name), want, METRICS)
        return self.take(
            request, ticket, at=at, look=events.Look(found=True, reading=reading), since=at - 10.0
        )

    def pool_says(
        self, ticket: int, verdict: events.PoolVerdict | None, *, at: float = 0.0
    ) -> tuple[events.Output, ...]:
        """The pool's verdict on the request of `ticket` is here; None where the pool could not be asked."""
        return self.apply(events.AdmissionCallEnded(ticket, verdict, at))

    def assume(
        self,
        holder: Holder,
        amount: Resources,
        *,
        node: str = "n1",
        name: str = "default/placed",
        until: float = 10.0,
        at: float = 0.0,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> events.Output:
        """The answer to a placement that somebody assumes."""
        asked = events.PlacementAssumed(1, holder, name, node, amount, until, at, pool, reservation)
        (output,) = without_notices(self.apply(asked))
        return output

    def configure(self, rules: Rules) -> None:
        assert self.apply(events.Configured(rules)) == ()

    def ticked(self, at: float) -> tuple[events.Output, ...]:
        return self.apply(events.ClockTicked(at))

    def passed(self, at: float) -> tuple[events.Output, ...]:
        """The clock, and a read of the whole cluster begun then that shows nothing new."""
        outputs = self.ticked(at)
        assert self.apply(events.ClusterRead(at)) == ()
        return outputs

    # ------------------------------------------------------------ what the core knows

    def record(self, name: str = "vm") -> VmRecord:
        found = self.core.vms.find(pod(name))
        assert found is not None
        return found

    def state(self, name: str = "vm") -> RowState:
        """The row of a VM, or of another pod."""
        for kind in Kind:
            row = self.core.ledger.row(Holder(kind, f"uid-{name}"))
            if row is not None:
                return row.state
        raise AssertionError(f"{name} has no row")

    def floors(self, name: str = "vm") -> list[tuple[Cause, Resources]]:
        return [(floor.cause, floor.amount) for floor in self.state(name).floors]

    def floor(self, name: str, cause: Cause) -> Floor:
        (found,) = [floor for floor in self.state(name).floors if floor.cause is cause]
        return found

    def causes(self, name: str = "vm") -> set[Cause]:
        return {floor.cause for floor in self.state(name).floors}

    def node_reserved(self, name: str = "n1") -> Resources:
        """The amount of a node that all rows keep."""
        return self.account(name).reserved

    def account(self, name: str = "n1") -> NodeAccount:
        account = self.core.ledger.node(name)
        assert account is not None
        return account

    def over(self, name: str = "n1") -> set[OverCause]:
        return set(self.account(name).over)


def rules(
    *,
    system: Resources = ZERO,
    watermark: float = 0.9,
    unit: Resources | None = UNIT,
    overrides: tuple[NodeOverride, ...] = (),
    migration: bool = False,
    **growth: Any,
) -> Rules:
    """Rules with the same watermark for both resources; `growth` are fields of `GrowthSwitches`."""
    ppm = round(watermark * 1_000_000)
    return Rules(NodeRules(system, Watermark(ppm, ppm), unit), overrides, GrowthSwitches(**growth), migration)


def decided(outputs: tuple[events.Output, ...]) -> events.Decided:
    (answer,) = without_notices(outputs)
    assert isinstance(answer, events.Decided), answer
    return answer


def codes(outcome: events.Output) -> list[ReasonCode]:
    """The codes of an answer's reasons, the binding one first."""
    assert isinstance(outcome, events.Decided), outcome
    return [reason.code for reason in outcome.reasons]


def world_with_vm(
    use: Resources | None = UNIT,
    *,
    reservable: Resources | None = None,
    config: SchedulerConfig | None = None,
    is_new: bool = True,
    most: Resources | None = None,
) -> World:
    world = World(reservable, config=config)
    world.vm("vm", use, is_new=is_new, most=most)
    return world
