"""Known bugs of such schedulers and agents, each as a small patch: the model must find every one of them.

The numbers are those of the scenarios that overcommit a node with the bug (`tests/scenarios`).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock
from uuid import UUID

from msgspec.structs import replace

from protocol import sequence
from protocol.values import ZERO, Observation, Resources
from scheduler.permits.core import (
    admission,
    cluster,
    core,
    decision,
    limits,
    neon_callers,
    parley_callers,
    pools,
)
from scheduler.permits.core.core import Core
from scheduler.permits.core.events import VmSeen
from scheduler.permits.core.ledger import Cause, Floor, Ledger, OverCause, PoolAccount, Row, RowState, Verdict
from scheduler.permits.core.limits import Growth, Limit
from scheduler.permits.core.model import VmSpec
from scheduler.permits.core.state import CoreState
from tests.machines import ledger_world, moves_cluster, mutants_of_floors, mutants_of_kinds
from tests.machines.agent_models import ExtendedAgent
from tests.machines.cluster_models import Vm

Patch = AbstractContextManager[object]


def _patch(owner: object, name: str, new: object) -> Patch:
    return mock.patch.object(owner, name, new)


@contextlib.contextmanager
def grant_before_the_reserve() -> Iterator[None]:
    """The permit is told at once and posted only after the next input, as after an `await` between the two."""
    post, apply = Ledger.post, Core.apply
    late: list[tuple[Ledger, Verdict]] = []

    def post_later(ledger: Ledger, verdict: Verdict, cause: OverCause | None = None) -> None:
        if verdict.grant is None:
            post(ledger, verdict, cause)
        else:
            late.append((ledger, verdict))

    def apply_and_post(door: Core, event: Any) -> Any:
        due = [verdict for ledger, verdict in late if ledger is door.ledger]
        late.clear()
        outputs = apply(door, event)
        for verdict in due:
            if door.ledger.row(verdict.holder) is not None:
                post(door.ledger, verdict, OverCause.CLAIM)
        return outputs

    with _patch(Ledger, "post", post_later), _patch(Core, "apply", apply_and_post):
        yield


def lost_release() -> Patch:
    """A decrease is told and never posted."""
    post = Ledger.post

    def post_no_decrease(ledger: Ledger, verdict: Verdict, cause: OverCause | None = None) -> None:
        row = ledger.row(verdict.holder)
        if verdict.grant is not None and verdict.state is not None and row is not None:
            current = verdict.state.current.max(row.state.current)
            verdict = replace(verdict, state=replace(verdict.state, current=current))
        post(ledger, verdict, cause)

    return _patch(Ledger, "post", post_no_decrease)


def reply_remembered_too_long() -> Patch:
    """A retry gets the remembered permit, though the row has fallen since."""

    def repeat(opened: Any, reply: Any) -> Any:
        opened.unit = reply.unit
        grant = limits.Grant(reply.permit, reply.reasons)
        return decision.decided(opened, grant, opened.record.row.state.current, changed=False)

    return _patch(parley_callers, "_repeat", repeat)


def supersession_by_arrival() -> Patch:
    """The caller that comes last owns the VM, whenever its life started."""
    judge = sequence.AgentGate.check

    def judge_by_arrival(gate: sequence.AgentGate, life: sequence.Life, number: int, body: object) -> Any:
        judged = judge(gate, life, number, body)
        return sequence.Passed.SUPERSEDES if isinstance(judged, sequence.Superseded) else judged

    return _patch(sequence.AgentGate, "check", judge_by_arrival)


def buffer_subtracted_twice() -> Patch:
    """A row that changes takes its buffer out of the node's sum once more."""
    change = Ledger._change

    def change_twice(ledger: Ledger, row: Row, state: RowState, cause: OverCause | None) -> None:
        buffer = row.reserved - row.state.current
        change(ledger, row, state, cause)
        account = ledger.node(row.node)
        if account is not None and buffer != ZERO:
            account.reserved -= buffer

    return _patch(Ledger, "_change", change_twice)


def settled_by_anybody() -> Patch:
    """A request settles a row though it names neither this process nor its last answer."""
    settle = parley_callers.settle

    def settle_for_all(opened: Any) -> Any:
        request, instance = opened.request, opened.core.config.instance
        opened.request, opened.record.token = naming(request, instance), "any"
        answer = settle(opened)
        opened.request = request
        return answer

    return _patch(parley_callers, "settle", settle_for_all)


def naming(request: Any, instance: UUID) -> Any:
    """The request, as if it named that process and the token "any"."""
    return replace(request, extension=replace(request.extension, scheduler_instance=instance, token="any"))


def one_hand_over_floor() -> Patch:
    """A second hand-over takes the place of the first, whoever it was about."""
    with_floor = RowState.with_floor

    def with_one(state: RowState, floor: Floor) -> RowState:
        if floor.cause is Cause.HANDOVER:
            floor = replace(floor, about="")
        return with_floor(state, floor)

    return _patch(RowState, "with_floor", with_one)


def bounds_cut_below_use() -> Patch:
    judge = decision.judge

    def judge_cut(opened: Any, *rest: Any) -> Any:
        bound = opened.record.spec.bounds.max
        opened.wanted, wanted = opened.wanted.min(bound), opened.wanted
        verdict = judge(opened, *rest)
        opened.wanted = wanted
        return verdict

    return _patch(decision, "judge", judge_cut)


@contextlib.contextmanager
def bystander_gets_what_is_pending() -> Iterator[None]:
    """A caller beside an agent with the extension gets all that the row keeps, what waits for a pool included."""
    stand_by = neon_callers._stand_by

    def stand_by_reserved(opened: Any) -> Any:
        opened.least = opened.wanted.min(opened.record.row.reserved)
        return stand_by(opened)

    with _patch(neon_callers, "_stand_by", stand_by_reserved):
        yield


def decrease_believed_at_once() -> Patch:
    """Any read ends what is kept for a published agent, even a read from before the agent was told less."""

    def after_read(terms: Any, state: RowState, use: Resources, begun_s: float) -> RowState:
        kept = tuple(
            floor for floor in state.floors if floor.cause is not Cause.TOLD or floor.told_less_s is None
        )
        return replace(state, floors=kept)

    return _patch(admission, "after_read", after_read)


def targets_left_out() -> Patch:
    """Only the size counts as use, not the target that it moves to."""
    return _patch(Observation, "use", property(lambda reading: reading.size))


def sent_resize_left_out() -> Patch:
    """An agent forgets the resize that it sent until it sees the target."""
    return _patch(ExtendedAgent, "in_use", lambda agent: agent.size.max(agent.target))


@contextlib.contextmanager
def no_fence() -> Iterator[None]:
    """A new life begins while commands of an earlier one are under way, for as long as they like."""
    with _patch(Vm, "fence", lambda _: None), _patch(ledger_world, "COMMAND_DEADLINE_S", 90.0):
        yield


def late_event_ends_claim() -> Patch:
    """Any event of the cluster ends what only the agent knows of."""
    observe = cluster._observe

    def observe_and_forget(state: CoreState, record: Any, reading: Observation) -> None:
        row = record.row
        state.ledger.post(Verdict(row.holder, row.node, row.state.without(Cause.CLAIMED)))
        observe(state, record, reading)

    return _patch(cluster, "_observe", observe_and_forget)


@contextlib.contextmanager
def new_right_after_a_start() -> Iterator[None]:
    """A VM that the list of a start did not hold is taken for newborn at once. Whatever vanishes does so over a start."""
    enter = cluster._enter

    def enter_at_once(state: CoreState, seen: VmSeen, vm: VmSpec) -> None:
        with _patch(CoreState, "inherits_until_s", lambda _, now_s: now_s):
            enter(state, seen, vm)

    with _patch(moves_cluster, "VANISHES_OVER_A_START", True), _patch(cluster, "_enter", enter_at_once):
        yield


def handover_dies_with_the_scheduler() -> Patch:
    """A row settles at the claim of any life, though another one was heard by another process only."""
    settle = parley_callers._settle
    return _patch(parley_callers, "_settle", lambda *row, **_: settle(*row, is_alone=True))


def blind_write() -> Patch:
    """A resize does not look at what stands there."""
    return _patch(Vm, "written", lambda _: None)


@contextlib.contextmanager
def no_lease() -> Iterator[None]:
    """An agent holds its permit for ever."""
    lapse = ExtendedAgent.lapse

    def lapse_nothing(agent: ExtendedAgent, now_s: float) -> None:
        agent.lease_until_s = float("inf")
        lapse(agent, now_s)

    with _patch(ExtendedAgent, "lapse", lapse_nothing):
        yield


def own_floor_is_headroom() -> Patch:
    """A row may grow within what its own floors keep, also on a node that is over-full."""
    headroom = Ledger.headroom

    def headroom_and_floor(ledger: Ledger, node: str, holder: Any) -> Resources:
        row = ledger.row(holder)
        room = headroom(ledger, node, holder)
        return room if row is None else room.max(row.reserved)

    return _patch(Ledger, "headroom", headroom_and_floor)


def resize_forgotten_at_its_deadline() -> Patch:
    """An agent takes a resize for failed when its deadline is over, without a look."""
    lapse = ExtendedAgent.lapse

    def lapse_and_forget(agent: ExtendedAgent, now_s: float) -> None:
        lapse(agent, now_s)
        if agent.sent is not None and now_s >= agent.sent_until_s:
            agent.sent = None

    return _patch(ExtendedAgent, "lapse", lapse_and_forget)


@contextlib.contextmanager
def old_event_ends_silence() -> Iterator[None]:
    """A silent row falls to whatever is told last, whenever that was read. The watch may lag longer than a hand-over."""
    see, after_silence = cluster.vm_seen, cluster._after_silence
    told_s = 0.0

    def see_when(state: CoreState, seen: VmSeen) -> Any:
        nonlocal told_s
        told_s = seen.now_s
        return see(state, seen)

    def fall(state: CoreState, record: Any, row_state: RowState, reading: Observation) -> RowState:
        return after_silence(state, record, row_state, dataclasses.replace(reading, begun_s=told_s))

    lag, seen = (
        _patch(ledger_world, "LAG_BEYOND_HANDOVER_S", 15.0),
        mock.patch.dict(core._HANDLERS, {VmSeen: see_when}),
    )
    with lag, seen, _patch(cluster, "_after_silence", fall):
        yield


# ---------------------------------------------------------------- pools


def others_forgotten_at_commit() -> Patch:
    """A verdict's total is taken for what the asking VM alone may hold."""
    total = pools.total

    def total_for_one(record: Any, account: PoolAccount, *rest: Any) -> list[Limit]:
        return total(record, PoolAccount(account.name, account.spec, record.row.units), *rest)

    return _patch(pools, "total", total_for_one)


def verdict_for_another_generation() -> Patch:
    """A verdict counts whatever became of the pool since it was formed."""
    admitted = pools.admitted

    def admitted_for_any(ledger: Ledger, record: Any, way: Growth, call: Any) -> list[Limit]:
        verdict = dataclasses.replace(call.verdict, generation=None)
        return admitted(ledger, record, way, dataclasses.replace(call, verdict=verdict))

    return _patch(pools, "admitted", admitted_for_any)


def births_not_counted() -> Patch:
    """A VM that is born into a pool, or comes to it, counts nothing until its row is changed."""
    join_pool = Ledger.join_pool

    def join_uncounted(ledger: Ledger, holder: Any, name: str | None, *, comes: bool = True) -> None:
        is_born = ledger.require(holder).pool is None
        join_pool(ledger, holder, name, comes=comes)
        if is_born and name is not None:
            account, row = ledger.pool(name), ledger.require(holder)
            assert account is not None
            account.units, row.units = account.units - row.units, 0

    return _patch(Ledger, "join_pool", join_uncounted)


def label_leaves_units_behind() -> Patch:
    """A VM that is labelled with another pool goes on counting in the first one."""

    def join_at_birth(ledger: Ledger, holder: Any, name: str | None, *, comes: bool = True) -> None:
        if ledger.require(holder).pool is None:
            join_pool(ledger, holder, name, comes=comes)

    join_pool = Ledger.join_pool
    return _patch(Ledger, "join_pool", join_at_birth)


def pending_counts_in_the_pool() -> Patch:
    """An amount that is only waited for counts as held, so that those who wait refuse each other."""
    return _patch(RowState, "firm", property(lambda state: state.reserved))


@contextlib.contextmanager
def own_limits_not_looked_at_again() -> Iterator[None]:
    """The pool's own limits are looked at when a request comes, and not when its verdict does."""
    bounds, judge = pools.bounds, decision.judge
    is_at_commit = False

    def bounds_at_first(*args: Any) -> list[Limit]:
        return [] if is_at_commit else bounds(*args)

    def judge_without(opened: Any, call: Any = None) -> Any:
        nonlocal is_at_commit
        is_at_commit = call is not None
        return judge(opened, call)

    with _patch(pools, "bounds", bounds_at_first), _patch(decision, "judge", judge_without):
        yield


@contextlib.contextmanager
def floor_needs_no_verdict() -> Iterator[None]:
    """Growth within what the VM's own floors keep asks nobody."""
    judge, must_be_asked = decision.judge, pools.must_be_asked
    kept = ZERO

    def judge_and_note(opened: Any, *rest: Any) -> Verdict:
        nonlocal kept
        kept = opened.record.row.state.firm if opened.request.extension is not None else ZERO
        return judge(opened, *rest)

    def asked_beyond_floors(ledger: Ledger, name: str, current: Resources, permit: Resources) -> bool:
        return must_be_asked(ledger, name, current.max(kept), permit)

    with _patch(decision, "judge", judge_and_note), _patch(pools, "must_be_asked", asked_beyond_floors):
        yield


def growth_in_a_pool_that_is_above() -> Patch:
    """A VM grows within its own part though its pool holds more than was admitted."""
    total = pools.total

    def total_without_a_look(
        record: Any, account: PoolAccount, way: Growth, most: int, why: Any
    ) -> list[Limit]:
        return total(record, account, way, max(most, account.units), why)

    return _patch(pools, "total", total_without_a_look)


def verdict_of_the_pool_it_left() -> Patch:
    """A verdict counts for a VM that belongs to another pool by now."""
    admitted = pools.admitted

    def admitted_there(ledger: Ledger, record: Any, way: Growth, call: Any) -> list[Limit]:
        there = dataclasses.replace(call, pool=record.spec.pool or call.pool)
        return admitted(ledger, record, way, there)

    return _patch(pools, "admitted", admitted_there)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug by number, and a seed whose walk finds it soon."""

    number: int
    patch: Callable[[], AbstractContextManager[object]]
    seed: int = 0

    @property
    def name(self) -> str:
        return self.patch.__name__.replace("_", " ")


MUTANTS: Final = (
    Mutant(1, grant_before_the_reserve),
    Mutant(2, lost_release),
    Mutant(3, reply_remembered_too_long, 15),
    Mutant(4, supersession_by_arrival, 1),
    Mutant(5, buffer_subtracted_twice),
    Mutant(6, settled_by_anybody, 16),
    Mutant(7, one_hand_over_floor, 16),
    Mutant(8, bounds_cut_below_use),
    Mutant(9, bystander_gets_what_is_pending, 4),
    Mutant(10, decrease_believed_at_once, 8),
    Mutant(11, targets_left_out, 2),
    Mutant(12, sent_resize_left_out),
    Mutant(13, no_fence),
    Mutant(14, late_event_ends_claim, 162),
    Mutant(15, new_right_after_a_start, 3),
    Mutant(16, no_lease, 9),
    Mutant(17, own_floor_is_headroom),
    Mutant(18, resize_forgotten_at_its_deadline),
    Mutant(19, old_event_ends_silence, 54),
    Mutant(20, others_forgotten_at_commit),
    Mutant(21, verdict_for_another_generation, 22),
    Mutant(22, births_not_counted),
    Mutant(23, label_leaves_units_behind),
    Mutant(24, pending_counts_in_the_pool, 2),
    Mutant(25, own_limits_not_looked_at_again, 120),
    Mutant(26, floor_needs_no_verdict, 1),
    Mutant(27, growth_in_a_pool_that_is_above),
    Mutant(28, verdict_of_the_pool_it_left, 1150),
    Mutant(29, handover_dies_with_the_scheduler, 11),
    Mutant(30, blind_write, 22),
    Mutant(31, mutants_of_kinds.limit_of_the_other_resource),
    Mutant(32, mutants_of_kinds.permit_counted_by_the_smaller),
    Mutant(33, mutants_of_kinds.pool_counted_by_the_smaller),
    Mutant(34, mutants_of_kinds.tied_vm_treated_as_apart),
    Mutant(35, mutants_of_kinds.apart_vm_treated_as_tied),
    Mutant(36, mutants_of_kinds.pool_limits_one_resource, 1),
    Mutant(37, mutants_of_kinds.memory_asks_nobody),
    Mutant(38, mutants_of_kinds.refused_pool_refuses_what_it_counts),
    Mutant(39, mutants_of_kinds.published_caller_treated_as_apart, 26),
    Mutant(40, mutants_of_kinds.retry_told_the_kind_of_now, 55),
    Mutant(41, mutants_of_kinds.floors_kept_as_a_whole),
    Mutant(42, mutants_of_floors.told_floor_ends_before_the_deadline, 8),
    Mutant(43, mutants_of_floors.smaller_told_floor_replaces_a_larger, 12),
    Mutant(44, mutants_of_floors.told_floor_ends_after_a_short_silence, 8),
    Mutant(45, mutants_of_floors.floors_end_early, 1),
    Mutant(46, mutants_of_floors.hand_over_keeps_the_permit_only, 70),
    Mutant(47, mutants_of_floors.gate_is_forgotten, 7),
    Mutant(48, mutants_of_floors.unheard_life_by_age, 1),
    Mutant(49, mutants_of_floors.fence_not_looked_at, 1),
)
