"""`LedgerFit` and `DefaultBinder`: which nodes have room and why not, what is kept from the choice of a node to the binding."""

from dataclasses import replace

import pytest

from hosting.settings import FaultsError
from protocol.values import ZERO, Resources
from scheduler.permits.core.model import Kind
from scheduler.placing.core.objects import NodeInfo, PodInfo, Reservation
from scheduler.placing.core.values import MAX_PERMIT_WAIT_S, Code, PreFilterResult
from scheduler.placing.plugins.base import MAY_BE_BOUND
from scheduler.placing.plugins.ledger_fit import PRE_BIND_S, DefaultBinder, LedgerFit
from scheduler.ports import BINDING_SETTLES_S, NotBound
from tests.support.amounts import cu
from tests.unit.scheduler_framework.plugin_worlds import (
    NO_ROOM,
    Assumed,
    BinderAsTold,
    HandleAsTold,
    LedgerAsTold,
    NominatorAsTold,
    Notes,
    node,
    pod,
    row,
    told,
)

LACKS_CPU = "Insufficient cpu: the pod needs 1 CPU and the other holders"
NO_LEDGER = (
    "Insufficient cpu: the pod needs 1 CPU, and no more than 0 CPU can be reserved on the node at all",
    "Insufficient memory: the pod needs 1Gi, and no more than 0 can be reserved on the node at all",
)
FULL = node("a", cu(8), [row("db", cu(4)), row("web", cu(1)), row("job", cu(2)), row("log", cu(0.5))])
OVER_FULL = node("a", cu(4), [row("db", cu(4)), row("mine", cu(2))])


def fit(handle: HandleAsTold) -> LedgerFit:
    return LedgerFit({"holdSeconds": 10}, handle.extended)


# ------------------------------------------------------------ filter


@pytest.mark.parametrize(
    ("asking", "where", "code", "message"),
    [
        (pod("new", cu(0.5)), FULL, Code.SUCCESS, ""),
        (
            pod("new", cu(1, 0.5)),
            FULL,
            Code.UNSCHEDULABLE,
            f"{LACKS_CPU} leave 500m CPU (largest: default/db 4 CPU, default/job 2 CPU, default/web 1 CPU)",
        ),
        (
            pod("new", cu(2, 9)),
            FULL,
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            "Insufficient memory: the pod needs 9Gi, and no more than 8Gi can be reserved on the node at all",
        ),
        (pod("mine", cu(2)), OVER_FULL, Code.SUCCESS, ""),
        (pod("mine", cu(2), most=cu(4)), OVER_FULL, Code.SUCCESS, ""),
        (
            pod("mine", cu(3, 2)),
            OVER_FULL,
            Code.UNSCHEDULABLE,
            "Insufficient cpu: the pod needs 3 CPU and the other holders leave 2 CPU (largest: default/db 4 CPU)",
        ),
        (
            pod("new", cu(1)),
            node("a"),
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            ", ".join(NO_LEDGER),
        ),
    ],
    ids=[
        "fits",
        "no room",
        "larger than the node",
        "its own row",
        "its own row, before it was known to grow",
        "grown beyond its own row",
        "no ledger",
    ],
)
def test_a_pod_fits_in_what_the_other_rows_leave(
    asking: PodInfo, where: NodeInfo, code: Code, message: str
) -> None:
    assert told(fit(HandleAsTold()).filter(Notes(), asking, where)) == (code, message)


def test_the_reason_follows_the_rows_of_the_node() -> None:
    made = fit(HandleAsTold())
    made.filter(Notes(), pod("new", cu(2)), FULL)
    later = node("a", cu(8), [row("late", cu(8))])
    assert "(largest: default/late 8 CPU)" in told(made.filter(Notes(), pod("new", cu(2)), later))[1]


@pytest.mark.parametrize(("amount", "code"), [(ZERO, Code.SKIP), (Resources(0, 1), Code.SUCCESS)])
def test_who_needs_nothing_is_not_filtered(amount: Resources, code: Code) -> None:
    found, status = fit(HandleAsTold()).pre_filter(Notes(), pod("new", amount), [OVER_FULL])
    assert (found, told(status)) == (None, (code, ""))


@pytest.mark.parametrize("most", [None, cu(4)], ids=["as a pod", "as a pod that will be a VM"])
def test_a_pod_that_may_be_bound_is_tried_on_its_node_alone(most: Resources | None) -> None:
    nodes = [node("a", cu(8)), node("b", cu(8), [row("new", cu(1))]), node("c", cu(8))]
    handle = HandleAsTold()
    handle.placements.kept["uid-new"] = Assumed("default/new", "b", cu(1), 1000.0, None, None)
    found, status = fit(handle).pre_filter(Notes(), pod("new", cu(1), most=most), nodes)
    assert (found, status) == (PreFilterResult(frozenset("b")), None)


# ------------------------------------------------------------ from the choice to the binding


def test_room_is_kept_over_the_wait_for_a_permit_and_then_for_the_binding() -> None:
    handle, context, new = HandleAsTold(), Notes(), pod("new", cu(2), pool="ci")
    made = fit(handle)
    assert made.reserve(context, new, "a") is None
    over_s = 1000 + MAX_PERMIT_WAIT_S + 10
    assert handle.placements.kept == {
        "uid-new": Assumed("default/new", "a", cu(2), over_s, "ci", None),
    }
    handle.time_s = 1100
    assert made.pre_bind(context, new, "a") is None
    assert handle.placements.kept["uid-new"].until_s == 1100 + PRE_BIND_S + 10


@pytest.mark.parametrize("at", ["reserve", "pre_bind"])
def test_a_refusal_of_the_ledger_rejects_the_pod(at: str) -> None:
    made = fit(HandleAsTold(LedgerAsTold(NO_ROOM)))
    status = getattr(made, at)(Notes(), pod("new", cu(2)), "a")
    assert told(status) == (Code.UNSCHEDULABLE, "node a: the other holders leave 0 CPU of the node")


def test_unreserve_gives_back_once_and_only_what_this_cycle_was_given() -> None:
    handle, context, new = HandleAsTold(), Notes(), pod("new", cu(2))
    made = fit(handle)
    made.unreserve(context, new, "a")
    assert handle.placements.forgotten == []
    made.reserve(context, new, "a")
    made.unreserve(context, new, "a")
    made.unreserve(context, new, "a")
    assert handle.placements.forgotten == ["uid-new"]
    assert context == {}


async def test_a_pod_uses_the_reservation_that_was_nominated_and_is_told_so() -> None:
    reservation = Reservation("uid-r", "r", "a", cu(4))
    handle = HandleAsTold(nominator=NominatorAsTold({"uid-new": reservation}))
    context, new = Notes(), pod("new", cu(2))
    fit(handle).reserve(context, new, "a")
    assert handle.placements.kept["uid-new"].reservation == "uid-r"
    assert await DefaultBinder(None, handle.extended).bind(context, new, "a") is None
    assert handle.binder is not None
    assert handle.binder.bound == [("default:new", "uid-new", "a", {"parley.dev/reservation": "uid-r"})]


@pytest.mark.parametrize(
    ("failure", "forgotten"),
    [
        (NotBound("the pod is gone"), ["uid-new"]),
        (NotBound("no answer within 5 s", may_be_bound=True), []),
    ],
)
async def test_room_stays_kept_while_the_pod_may_be_bound(failure: NotBound, forgotten: list[str]) -> None:
    handle, context, new = HandleAsTold(binder=BinderAsTold(failure)), Notes(), pod("new", cu(2))
    made = fit(handle)
    made.reserve(context, new, "a")
    status = await DefaultBinder(None, handle.extended).bind(context, new, "a")
    said = (
        "it is not known yet whether pod default/new was bound"
        if failure.may_be_bound
        else "pod default/new was not bound"
    )
    assert told(status) == (Code.ERROR, f"{said} to node a: {failure.message}")
    made.unreserve(context, new, "a")
    assert handle.placements.forgotten == forgotten


async def test_the_room_of_a_pod_that_may_be_bound_is_not_moved_before_its_time_is_over() -> None:
    handle, context, new = (
        HandleAsTold(binder=BinderAsTold(NotBound("", may_be_bound=True))),
        Notes(),
        pod("new", cu(2)),
    )
    made = fit(handle)
    made.reserve(context, new, "a")
    await DefaultBinder(None, handle.extended).bind(context, new, "a")
    made.unreserve(context, new, "a")
    text = "the pod may be bound to node a, because the answer to its binding was lost"
    assert told(made.reserve(Notes(), new, "b")) == (Code.UNSCHEDULABLE, text)
    assert handle.placements.kept["uid-new"].node == "a"
    assert made.reserve(Notes(), new, "a") is None
    handle.time_s += BINDING_SETTLES_S
    assert made.reserve(Notes(), new, "b") is None


@pytest.mark.parametrize("where", ["a", "b"])
async def test_a_later_cycle_that_fails_leaves_the_room_of_a_lost_binding_alone(where: str) -> None:
    """For as long as the lost request may be carried out, and no longer: tries that send nothing do not prolong that."""
    handle, new = HandleAsTold(binder=BinderAsTold(NotBound("", may_be_bound=True))), pod("new", cu(2))
    made, first = fit(handle), Notes()
    made.reserve(first, new, "a")
    made.pre_bind(first, new, "a")
    await DefaultBinder(None, handle.extended).bind(first, new, "a")
    handle.time_s = 1020
    made.unreserve(first, new, "a")
    over_s = 1020 + BINDING_SETTLES_S
    for now_s in (1030, 1070):
        handle.time_s, later = now_s, Notes()
        made.pre_filter(later, new, [node("a", cu(8))])
        made.reserve(later, new, where)
        made.unreserve(later, new, where)
        assert later.get(MAY_BE_BOUND), "whoever forgets pods leaves this one alone, too"
        assert (handle.placements.forgotten, handle.placements.kept["uid-new"].until_s) == ([], over_s)
    handle.time_s, later = over_s, Notes()
    made.pre_filter(later, new, [node("a", cu(8))])
    made.reserve(later, new, where)
    made.unreserve(later, new, where)
    assert handle.placements.forgotten == ["uid-new"]


async def test_without_a_binder_the_next_plugin_binds() -> None:
    status = await DefaultBinder(None, HandleAsTold(binder=None).extended).bind(Notes(), pod("new"), "a")
    assert told(status) == (Code.SKIP, "")


def test_a_pod_that_grows_is_kept_as_a_vm() -> None:
    handle = HandleAsTold()
    growing = replace(pod("new", cu(1), most=cu(4)), uid="uid-vm")
    fit(handle).reserve(Notes(), growing, "a")
    assert growing.holder.kind is Kind.VM
    assert list(handle.placements.kept) == ["uid-vm"]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"holdSeconds": 0}, "holdSeconds: must be at least 1"),
        ({"hold": 5}, "hold: "),
    ],
)
def test_wrong_args_are_told_with_their_path(args: dict[str, object], fault: str) -> None:
    with pytest.raises(FaultsError) as caught:
        LedgerFit(args, HandleAsTold().extended)
    assert str(caught.value).startswith(fault)
