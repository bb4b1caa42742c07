"""The objects that the cluster shows, entered into the accounts: nodes, VMs, other pods, and the rules that hold for nodes."""

from msgspec.structs import replace

from protocol.reasons import ErrorCode, ReasonCode
from protocol.sequence import AgentGate
from protocol.values import ZERO, Observation
from scheduler.permits.core import admission, clock, events, neon_callers, placement, pools
from scheduler.permits.core.ledger import Cause, Floor, NodeCapacity, OverCause, RowState, Verdict
from scheduler.permits.core.model import Holder, Kind, NodeSpec, VmSpec
from scheduler.permits.core.rules import Rules
from scheduler.permits.core.state import CoreState, VmRecord

_Outputs = tuple[events.Output, ...]


# ------------------------------------------------------------ rules and nodes


def configured(core: CoreState, event: events.Configured) -> _Outputs:
    """New rules: every node's capacity anew, and the pools of VMs that name none."""
    core.rules = event.rules
    for node in core.nodes.values():
        core.ledger.set_node(capacity_of(node, event.rules), OverCause.CONFIGURATION)
    for record in core.vms:
        vm = pools.with_pool(record.spec, event.rules)
        if vm is not record.spec and vm != record.spec and (found := core.vms.find(vm.pod)) is not None:
            _change(core, found, vm)
    return ()


def node_seen(core: CoreState, event: events.NodeSeen) -> _Outputs:
    core.nodes[event.node.name] = event.node
    core.ledger.set_node(capacity_of(event.node, core.rules), OverCause.CONFIGURATION)
    return ()


def node_gone(core: CoreState, event: events.NodeGone) -> _Outputs:
    """A node has gone. Rows that name it stay, and count nowhere."""
    core.nodes.pop(event.name, None)
    core.ledger.remove_node(event.name)
    return ()


# ------------------------------------------------------------ pools


def pool_seen(core: CoreState, event: events.PoolSeen) -> _Outputs:
    """A pool, or a change of one. A request that waits for its verdict is judged by the new description then."""
    core.ledger.set_pool(event.spec.name, event.spec)
    return ()


def pool_gone(core: CoreState, event: events.PoolGone) -> _Outputs:
    """A pool was deleted. Its VMs keep what they have, and a verdict of its plugins that is under way is void."""
    for record in core.admission_calls.values():
        if record.admission is not None and record.admission.pool == event.name:
            record.admission.is_void = True
    core.ledger.set_pool(event.name, None)
    return ()


# ------------------------------------------------------------ other pods


def pod_seen(core: CoreState, event: events.PodSeen) -> _Outputs:
    """A pod that is no VM holds its requests until it has ended."""
    pod = event.pod
    if pod.terminal:
        return pod_gone(core, events.PodGone(pod))
    name = pod.pod.full_name
    row = core.ledger.row(pod.holder)
    if row is None or row.node != pod.node or row.state != RowState(pod.requests):
        verdict = Verdict(pod.holder, pod.node, RowState(pod.requests), name=name)
        core.ledger.post(verdict, OverCause.BYPASSED)
    comes = row is not None or core.serving_since_s is not None
    core.ledger.join_pool(pod.holder, pod.pool, comes=comes)
    placement.shown(core, pod.holder, pod.reservation, pod.requests)
    return ()


def pod_gone(core: CoreState, event: events.PodGone) -> _Outputs:
    placement.forget(core, event.pod.holder)
    if core.ledger.row(event.pod.holder) is not None:
        core.ledger.post(Verdict(event.pod.holder, event.pod.node, None))
    placement.leave(core, event.pod.holder)
    return ()


# ------------------------------------------------------------ VMs


def vm_seen(core: CoreState, seen: events.VmSeen) -> _Outputs:
    core.now_s = max(core.now_s, seen.now_s)
    vm = pools.with_pool(seen.vm, core.rules)
    outputs: _Outputs = ()
    record = core.vms.find(vm.pod)
    if record is not None and (record.spec.uid != vm.uid or vm.terminal):
        outputs = _forget(core, record, seen.now_s)
        record = None
    if vm.terminal:
        placement.forget(core, vm.holder)
        return outputs
    if record is None:
        if core.vms.by_uid(vm.uid) is None:  # one UID under two names: the first keeps the row
            _enter(core, seen, vm)
        return outputs
    if record.spec == vm and record.reading == seen.reading:
        return outputs  # nothing is told that is not known: a look at what nobody has changed
    if record.spec != vm:
        outputs = _more_cpus(record, vm)
        _change(core, record, vm)
    known = record.reading
    if seen.reading is not None and (known is None or seen.reading.begun_s >= known.begun_s):
        record.reading = seen.reading
        _observe(core, record, seen.reading)
    clock.schedule(core, record)
    return outputs


def _more_cpus(record: VmRecord, vm: VmSpec) -> _Outputs:
    """Tell the agent of a VM that was refused for want of CPUs of its own that it has more of them."""
    reply, most = record.reply, vm.bounds.max
    is_refused = reply is not None and any(each.code is ReasonCode.OWN_CPUS for each in reply.reasons)
    if reply is None or not is_refused or most.vcpu_milli <= record.spec.bounds.max.vcpu_milli:
        return ()
    amount = record.row.state.current.max(reply.request.min(most))
    return (events.RoomOffered(vm.pod, vm.uid, vm.node, amount),)


def cpus_held(core: CoreState, event: events.CpusHeld) -> _Outputs:
    record = core.vms.by_uid(event.uid)
    if record is not None:
        record.cpus_held = event if event.most_milli is not None or event.why else None
    return ()


def vm_gone(core: CoreState, event: events.VmGone) -> _Outputs:
    core.now_s = max(core.now_s, event.now_s)
    record = core.vms.find(event.pod)
    if record is None or record.spec.uid != event.uid:
        placement.forget(core, Holder(Kind.VM, event.uid))
        return ()
    return _forget(core, record, event.now_s)


def _enter(core: CoreState, seen: events.VmSeen, vm: VmSpec) -> None:
    """A VM that is new to this process. Only one that is known to be new, at a known size, is settled from birth.

    One that went and has come back is not new: its agent may still hold what it was permitted. Nor is any right after
    a start: it may have been there before, and its agent hold what an earlier process permitted.
    """
    use = seen.reading.use if seen.reading is not None else ZERO
    retired = core.vms.revive(vm.uid, seen.now_s)
    is_new = seen.is_new and retired is None and seen.now_s >= core.inherits_until_s(seen.now_s)
    settled = is_new and seen.reading is not None
    floor = Floor(Cause.START_UP, vm.bounds.max.max(use), since_s=seen.now_s)
    state = RowState(use, () if settled else (floor,))
    name = vm.pod.full_name
    cause = OverCause.BYPASSED if settled else OverCause.SETTLING
    core.ledger.post(Verdict(vm.holder, vm.node, state, name=name), cause)
    core.ledger.join_pool(vm.holder, vm.pool, comes=settled)
    placement.shown(core, vm.holder, vm.reservation, use if seen.reading is not None else None)
    row = core.ledger.require(vm.holder)
    # Without its body the last request is no retry: its reply is gone, and judged anew it would claim what was.
    gate = replace(retired.gate, body=None, undecided=False) if retired is not None else AgentGate()
    record = VmRecord(
        vm, row, settled, seen.now_s, seen.reading, gate, is_late=core.serving_since_s is not None
    )
    core.vms.add(record)
    clock.schedule(core, record)


def _change(core: CoreState, record: VmRecord, vm: VmSpec) -> None:
    """The VM is described otherwise. While it is unsettled, a larger maximum may be in use already."""
    row, state = record.row, record.row.state
    cause = OverCause.BYPASSED
    if vm.bounds.max.exceeds(record.spec.bounds.max) and not record.settled:
        raised = tuple(
            replace(floor, amount=floor.amount.max(vm.bounds.max)) if floor.cause is Cause.START_UP else floor
            for floor in state.floors
        )
        state, cause = replace(state, floors=raised), OverCause.BOUNDS
    if vm.node != record.spec.node:  # it waited for room of the node that it has left
        state, record.waiting, record.elsewhere = state.without(Cause.OFFERED), None, None
    core.ledger.post(Verdict(row.holder, vm.node, state), cause)
    core.ledger.join_pool(row.holder, vm.pool)
    core.ledger.touch(vm.node)
    if vm.reservation != record.spec.reservation or vm.node != record.spec.node:
        placement.shown(core, vm.holder, vm.reservation, state.current)
    record.spec = vm


def _forget(core: CoreState, record: VmRecord, now_s: float) -> _Outputs:
    outputs = admission.cancel(
        core,
        record,
        lambda ticket: events.Refused(ticket, 404, ErrorCode.UNKNOWN_POD, f"{record.name} has gone"),
    )
    core.ledger.post(Verdict(record.spec.holder, record.spec.node, None))
    placement.leave(core, record.spec.holder)
    core.vms.remove(record)
    core.vms.retire(record, now_s + core.config.handover_s)
    core.timers.cancel(record.spec.uid)
    return outputs


def _observe(core: CoreState, record: VmRecord, reading: Observation) -> None:
    """The cluster showed a size: floors above it may end, one below it begins."""
    row = record.row
    state = admission.after_read(core.config, row.state, reading.use, reading.begun_s)
    state = _after_silence(core, record, state, reading)
    state = state.without(Cause.OBSERVED)
    if reading.use.exceeds(state.current):
        state = state.with_floor(Floor(Cause.OBSERVED, reading.use))
    if state != row.state:
        core.ledger.post(Verdict(row.holder, row.node, state), OverCause.OBSERVED)


def _after_silence(core: CoreState, record: VmRecord, state: RowState, reading: Observation) -> RowState:
    """An agent that was not heard for `handover_s` holds nothing: its row falls to what a later read shows."""
    config = core.config
    if not reading.is_at_rest or reading.begun_s < record.silent_since_s() + config.handover_s:
        return state
    state = state.without(Cause.CLAIMED)
    if neon_callers.is_allowed(config, record.spec.node):
        return state
    record.settled = True
    current = state.current.min(reading.use)
    state = state.without(Cause.START_UP)
    return state if current == state.current else replace(state, current=current)


def capacity_of(node: NodeSpec, rules: Rules) -> NodeCapacity:
    """The capacity of a node: its own values first, then the rules. A share beyond the node leaves nothing."""
    found = rules.for_node(node.name)
    system = node.system if node.system is not None else found.system
    reservable = (node.allocatable - system).max(ZERO)
    unit = node.compute_unit if node.compute_unit is not None else found.compute_unit
    return NodeCapacity(node.name, reservable, found.watermark.of(reservable), unit)
