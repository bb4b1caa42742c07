"""What the cluster shows, entered into the accounts: nodes, VMs, other pods, and the rules that hold for nodes."""

from msgspec.structs import replace

from protocol.reasons import ErrorCode
from protocol.sequence import AgentGate
from protocol.values import ZERO, Observation
from scheduler.core import events, placement, pools, progress, published
from scheduler.core.judging import CoreState
from scheduler.core.ledger import Cause, Floor, NodeCapacity, OverCause, RowState, Verdict
from scheduler.core.model import Holder, Kind, NodeSpec, VmSpec
from scheduler.core.rules import Rules
from scheduler.core.timers import TimerQueue
from scheduler.core.vms import VmRecord, VmTable

_Outputs = tuple[events.Output, ...]


class Cluster:
    """The door for everything that the cluster tells. `nodes` are the nodes as they were last shown."""

    def __init__(self, core: CoreState, vms: VmTable, timers: TimerQueue) -> None:
        self._core = core
        self._vms = vms
        self._timers = timers
        self.nodes: dict[str, NodeSpec] = {}

    # ------------------------------------------------------------ rules and nodes

    def configured(self, event: events.Configured) -> _Outputs:
        """New rules: every node's terms anew, and the pools of VMs that name none."""
        self._core.rules = event.rules
        for node in self.nodes.values():
            self._core.ledger.set_node(terms_of(node, event.rules), OverCause.CONFIGURATION)
        for record in self._vms:
            vm = pools.with_pool(record.spec, event.rules)
            if vm is not record.spec and vm != record.spec:
                self._change(record, vm)
        return ()

    def node_seen(self, event: events.NodeSeen) -> _Outputs:
        """A node, or a change of one."""
        self.nodes[event.node.name] = event.node
        self._core.ledger.set_node(terms_of(event.node, self._core.rules), OverCause.CONFIGURATION)
        return ()

    def node_gone(self, event: events.NodeGone) -> _Outputs:
        """A node has gone. Rows that name it stay, and count nowhere."""
        self.nodes.pop(event.name, None)
        self._core.ledger.remove_node(event.name)
        return ()

    # ------------------------------------------------------------ pools

    def pool_seen(self, event: events.PoolSeen) -> _Outputs:
        """A pool, or a change of one. What waits for its word is judged by the new terms when the word comes."""
        self._core.ledger.set_pool(event.spec.name, event.spec)
        return ()

    def pool_gone(self, event: events.PoolGone) -> _Outputs:
        """A pool was deleted. Its VMs keep what they have, and a word of its plugins that is under way is void."""
        for record in self._core.admission_calls.values():
            if record.progress is not None and record.progress.pool == event.name:
                record.progress.is_void = True
        self._core.ledger.set_pool(event.name, None)
        return ()

    # ------------------------------------------------------------ other pods

    def pod_seen(self, event: events.PodSeen) -> _Outputs:
        """A pod that is no VM holds its requests until it has ended."""
        pod = event.pod
        if pod.terminal:
            return self.pod_gone(events.PodGone(pod))
        self._core.placements.pop(pod.holder, None)
        name = f"{pod.pod.namespace}/{pod.pod.name}"
        row = self._core.ledger.row(pod.holder)
        if row is None or row.node != pod.node or row.state != RowState(pod.requests):
            verdict = Verdict(pod.holder, pod.node, RowState(pod.requests), name=name)
            self._core.ledger.post(verdict, OverCause.BYPASSED)
        return ()

    def pod_gone(self, event: events.PodGone) -> _Outputs:
        """A pod that is no VM has gone."""
        self._core.placements.pop(event.pod.holder, None)
        if self._core.ledger.row(event.pod.holder) is not None:
            self._core.ledger.post(Verdict(event.pod.holder, event.pod.node, None))
        return ()

    # ------------------------------------------------------------ VMs

    def vm_seen(self, seen: events.VmSeen) -> _Outputs:
        """A VM, or a change of one."""
        vm = pools.with_pool(seen.vm, self._core.rules)
        outputs: _Outputs = ()
        record = self._vms.find(vm.pod)
        if record is not None and (record.spec.uid != vm.uid or vm.terminal):
            outputs = self._forget(record, seen.now_s)
            record = None
        if vm.terminal:
            placement.forget(self._core, vm.holder)
            return outputs
        if record is None:
            if self._vms.by_uid(vm.uid) is None:  # one UID under two names: the first keeps the row
                self._enter(seen, vm)
            return outputs
        if record.spec == vm and record.reading == seen.reading:
            return outputs  # nothing is told that is not known: a look at what nobody has changed
        if record.spec != vm:
            self._change(record, vm)
        if seen.reading is not None and not _is_older(seen.reading, record.reading):
            record.reading = seen.reading
            self._observe(record, seen.reading)
        self._timers.look_after(self._core, record)
        return outputs

    def vm_gone(self, event: events.VmGone) -> _Outputs:
        """A VM's pod has gone."""
        record = self._vms.find(event.pod)
        if record is None or record.spec.uid != event.uid:
            placement.forget(self._core, Holder(Kind.VM, event.uid))
            return ()
        return self._forget(record, event.now_s)

    def _enter(self, seen: events.VmSeen, vm: VmSpec) -> None:
        """A VM that is new to this process. Only one that is known to be new, at a known size, is settled from birth.

        One that went and has come back is not new: its agent may still hold what it was permitted. Nor is any right after
        a start: it may have been there before, and its agent hold what an earlier process permitted.
        """
        use = seen.reading.use if seen.reading is not None else ZERO
        retired = self._vms.revive(vm.uid, seen.now_s)
        is_new = seen.is_new and retired is None and seen.now_s >= self._core.inherits_until_s(seen.now_s)
        settled = is_new and seen.reading is not None
        floor = Floor(Cause.START_UP, vm.bounds.max.max(use), since_s=seen.now_s)
        state = RowState(use, () if settled else (floor,))
        self._core.placements.pop(vm.holder, None)
        name = f"{vm.pod.namespace}/{vm.pod.name}"
        cause = OverCause.BYPASSED if settled else OverCause.START_UP
        self._core.ledger.post(Verdict(vm.holder, vm.node, state, name=name), cause)
        self._core.ledger.join_pool(vm.holder, vm.pool, comes=settled)
        row = self._core.ledger.require(vm.holder)
        # Without its body the last request is no retry: its reply is gone, and judged anew it would claim what was.
        gate = replace(retired.gate, body=None, undecided=False) if retired is not None else AgentGate()
        record = VmRecord(
            vm, row, settled, seen.now_s, seen.reading, gate, is_late=self._core.serving_since_s is not None
        )
        self._vms.add(record)
        self._timers.look_after(self._core, record)

    def _change(self, record: VmRecord, vm: VmSpec) -> None:
        """The VM is described otherwise. While it is unsettled, a larger maximum may be in use already."""
        row, state = record.row, record.row.state
        cause = OverCause.BYPASSED
        if vm.bounds.max.exceeds(record.spec.bounds.max) and not record.settled:
            raised = tuple(
                replace(floor, amount=floor.amount.max(vm.bounds.max))
                if floor.cause is Cause.START_UP
                else floor
                for floor in state.floors
            )
            state, cause = replace(state, floors=raised), OverCause.BOUNDS
        self._core.ledger.post(Verdict(row.holder, vm.node, state), cause)
        self._core.ledger.join_pool(row.holder, vm.pool)
        record.spec = vm

    def _forget(self, record: VmRecord, now_s: float) -> _Outputs:
        outputs = progress.cancel(
            self._core,
            record,
            lambda ticket: events.Refused(ticket, 404, ErrorCode.UNKNOWN_POD, f"{record.name} has gone"),
        )
        self._core.ledger.post(Verdict(record.spec.holder, record.spec.node, None))
        self._vms.remove(record)
        self._vms.retire(record, now_s + self._core.config.handover_s)
        self._timers.drop(record.spec.uid)
        return outputs

    def _observe(self, record: VmRecord, reading: Observation) -> None:
        """The cluster showed a size: floors above it may end, one below it begins."""
        row = record.row
        state = published.after_read(self._core.config, row.state, reading.use, reading.begun_s)
        state = self._after_silence(record, state, reading)
        state = state.without(Cause.OBSERVED)
        if reading.use.exceeds(state.current):
            state = state.with_floor(Floor(Cause.OBSERVED, reading.use))
        if state != row.state:
            self._core.ledger.post(Verdict(row.holder, row.node, state), OverCause.OBSERVED)

    def _after_silence(self, record: VmRecord, state: RowState, reading: Observation) -> RowState:
        """An agent that was not heard for `handover_s` holds nothing: its row falls to what a later read shows."""
        config = self._core.config
        if not reading.is_at_rest or reading.begun_s < record.silent_since_s() + config.handover_s:
            return state
        state = state.without(Cause.CLAIMED)
        if published.is_allowed(config, record.spec.node):
            return state
        record.settled = True
        current = state.current.min(reading.use)
        state = state.without(Cause.START_UP)
        return state if current == state.current else replace(state, current=current)


def terms_of(node: NodeSpec, rules: Rules) -> NodeCapacity:
    """What holds for a node: its own values first, then the rules. A share beyond the node leaves nothing."""
    found = rules.for_node(node.name)
    system = node.system if node.system is not None else found.system
    reservable = (node.allocatable - system).max(ZERO)
    unit = node.compute_unit if node.compute_unit is not None else found.compute_unit
    return NodeCapacity(node.name, reservable, found.watermark.of(reservable), unit)


def _is_older(reading: Observation, known: Observation | None) -> bool:
    return known is not None and reading.begun_s < known.begun_s
