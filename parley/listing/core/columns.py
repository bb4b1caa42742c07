"""The columns of every list, and the part of a row that scripts get."""

from typing import Final

from parley.listing.core.tables import TableColumn
from parley.top.texts import age
from protocol import quantities
from protocol.explaining import AmountShown, NodeShown, VmShown
from protocol.pages import ConditionShown, PoolShown


def short(amount: AmountShown | None) -> str | None:
    """CPUs and memory in one cell, `2/4Gi`."""
    return f"{amount.cpu}/{amount.memory}" if amount is not None else None


def worth(amount: AmountShown | None) -> tuple[int, int] | None:
    """The sort key of an amount; None if it is not known or no quantity."""
    if amount is None:
        return None
    try:
        return quantities.parse(amount.cpu).nanos, quantities.parse(amount.memory).nanos
    except quantities.QuantityError:
        return None


def namespace_of(vm: str) -> str:
    """`default` of `default/a`."""
    return vm.partition("/")[0]


def name_of(vm: str) -> str:
    """`a` of `default/a`."""
    return vm.partition("/")[2]


def asked_ago(vm: VmShown) -> str | None:
    return None if vm.asked_seconds_ago is None else age(vm.asked_seconds_ago)


def limit_of(vm: VmShown) -> str | None:
    if vm.limit is None:
        return None
    return f"{vm.limit.code}:{vm.limit.resource}" if vm.limit.resource else vm.limit.code


def state_of(vm: VmShown) -> str | None:
    """A VM's state in a word: its unusual condition, else the outcome of its latest request."""
    if vm.is_migrating:
        return "migrating"
    if not vm.is_settled:
        return "unsettled"
    return vm.outcome.value if vm.outcome is not None else None


NODE_COLUMNS: Final[tuple[TableColumn[NodeShown], ...]] = (
    TableColumn("NODE", lambda node: node.node),
    TableColumn("RESERVABLE", lambda node: short(node.reservable), lambda node: worth(node.reservable)),
    TableColumn("RESERVED", lambda node: short(node.reserved), lambda node: worth(node.reserved)),
    TableColumn("FREE", lambda node: short(node.free), lambda node: worth(node.free)),
    TableColumn("BUFFER", lambda node: short(node.buffer), lambda node: worth(node.buffer)),
    TableColumn("PRESSURE", lambda node: short(node.pressure), lambda node: worth(node.pressure)),
    TableColumn("OVER-FULL", lambda node: ",".join(node.over_full_because_of)),
    TableColumn(
        "ACCOUNTED",
        lambda node: short(node.pressure_accounted_for),
        lambda node: worth(node.pressure_accounted_for),
        is_wide=True,
    ),
    TableColumn(
        "WATERMARK", lambda node: short(node.watermark), lambda node: worth(node.watermark), is_wide=True
    ),
    TableColumn(
        "UNIT", lambda node: short(node.compute_unit), lambda node: worth(node.compute_unit), is_wide=True
    ),
)

VM_COLUMNS: Final[tuple[TableColumn[VmShown], ...]] = (
    TableColumn("NAMESPACE", lambda vm: namespace_of(vm.vm)),
    TableColumn("NAME", lambda vm: name_of(vm.vm)),
    TableColumn("NODE", lambda vm: vm.node),
    TableColumn("SIZE", lambda vm: short(vm.size), lambda vm: worth(vm.size)),
    TableColumn("PERMIT", lambda vm: short(vm.permit), lambda vm: worth(vm.permit)),
    TableColumn("WANTED", lambda vm: short(vm.wanted), lambda vm: worth(vm.wanted)),
    TableColumn("STATE", state_of),
    TableColumn("LIMIT", limit_of),
    TableColumn("POOL", lambda vm: vm.pool, is_wide=True),
    TableColumn("RESERVED", lambda vm: short(vm.reserved), lambda vm: worth(vm.reserved), is_wide=True),
    TableColumn("MAXIMUM", lambda vm: short(vm.maximum), lambda vm: worth(vm.maximum), is_wide=True),
    TableColumn("ASKED", asked_ago, lambda vm: vm.asked_seconds_ago, is_wide=True),
    TableColumn("UID", lambda vm: vm.uid, is_wide=True),
    TableColumn(
        "WHY", lambda vm: vm.limit.message if vm.limit is not None else None, is_wide=True, is_text=True
    ),
)

_ADMITTED: Final = "Admitted"


def _whole(count: int | None) -> str | None:
    return None if count is None else str(count)


def pool_condition(pool: PoolShown) -> ConditionShown | None:
    """The condition that needs a person first, else that of admission."""
    conditions = pool.status.conditions
    stopping = (each for each in conditions if each.type != _ADMITTED and each.status == "True")
    return next(stopping, next(iter(conditions), None))


def pool_state(pool: PoolShown) -> str | None:
    """The state of a pool in a word: `Parked`, `Frozen`, `AboveLimit`, …, or the reason of its last admission."""
    found = pool_condition(pool)
    if found is None:
        return None
    return found.reason if found.type == _ADMITTED else found.type or None


def _pool_message(pool: PoolShown) -> str | None:
    found = pool_condition(pool)
    return found.message if found is not None else None


POOL_COLUMNS: Final[tuple[TableColumn[PoolShown], ...]] = (
    TableColumn("NAME", lambda pool: pool.name),
    TableColumn("UNITS", lambda pool: str(pool.status.total_units), lambda pool: pool.status.total_units),
    TableColumn("MAX", lambda pool: _whole(pool.limits.max_units), lambda pool: pool.limits.max_units),
    TableColumn("VMS", lambda pool: str(pool.status.members), lambda pool: pool.status.members),
    TableColumn("WAITING", lambda pool: str(pool.status.waiting), lambda pool: pool.status.waiting),
    TableColumn("STATE", pool_state),
    TableColumn("MAX-PER-VM", lambda pool: _whole(pool.limits.max_units_per_vm), is_wide=True),
    TableColumn("CLAIMED", lambda pool: str(pool.status.claimed_units), is_wide=True),
    TableColumn("SATURATED-UNTIL", lambda pool: pool.status.saturated_until or "", is_wide=True),
    TableColumn("PARKED-VMS", lambda pool: str(len(pool.status.parked_vms)), is_wide=True),
    TableColumn("MESSAGE", _pool_message, is_wide=True, is_text=True),
)
