"""The words for what scheduler and agent say of a VM: amounts and times, limits with their node and pool, who holds the room, loads and containers."""

from collections.abc import Sequence
from typing import Final

from parley.explain.core.evidence import SizeCause, advice_of, rejection_of
from protocol.agent_pages import ContainersShown, RefusedDownscale, UrgentWish, VmInFull
from protocol.explaining import (
    AmountShown,
    Explanation,
    HolderShown,
    PoolCondition,
    PoolRoom,
    ReasonShown,
    Room,
)
from protocol.reasons import ReasonCode
from protocol.texts import counted

MAX_HOLDERS: Final = 3
SETTLING: Final = "settling"
"""The cause of an over-full node that ends by itself (`OverCause` of the scheduler)."""
_SETTLES: Final = "what its VMs may hold is kept until their agents have asked"
_OF_POOLS: Final = frozenset(
    {
        ReasonCode.POOL.value,
        ReasonCode.POOL_SATURATED.value,
        ReasonCode.POOL_PARKED.value,
        ReasonCode.POOL_FAILED.value,
        ReasonCode.PROBE_DEADLINE.value,
    }
)
_POOL_HEADS: Final = {
    PoolCondition.UNKNOWN: "there is no pool {}, which it is to be in",
    PoolCondition.DELETING: "its pool {} is being deleted, and nothing grows in it",
}


def seconds(duration_s: float | None) -> str:
    if duration_s is None:
        return "?"
    if duration_s < 10:
        return f"{duration_s:.1f} s"
    return f"{duration_s:.0f} s" if duration_s < 600 else f"{duration_s / 60:.0f} min"


def written(amount: AmountShown | None) -> str:
    """An amount as log lines write it."""
    return f"{amount.cpu} CPU / {amount.memory}" if amount is not None else "?"


def told(reason: ReasonShown) -> str:
    """A limit with its numbers."""
    about = (
        f"{reason.resource}: " if reason.resource and not reason.message.startswith(reason.resource) else ""
    )
    return f"{about}{reason.message}" if reason.message else about.rstrip(": ")


def limit_cause(limit: ReasonShown, told_by: Explanation | None) -> SizeCause:
    advice, detail, headline = advice_of(limit.code), told(limit), ""
    if told_by is not None and told_by.room is not None and limit.code == ReasonCode.NODE_HEADROOM:
        headline = _node_head(told_by.room)
        detail = _with(detail, _of_node(told_by.room, limit.resource))
    elif told_by is not None and told_by.pool is not None and limit.code in _OF_POOLS:
        pool = told_by.pool
        headline = _POOL_HEADS.get(pool.state, "").format(pool.pool) or advice.meaning.replace(
            "its pool", f"its pool {pool.pool}", 1
        )
        detail = _with(detail, _of_pool(pool) if limit.code == ReasonCode.POOL else "")
    elif told_by is not None and limit.code == ReasonCode.RECOMMEND_ONLY:
        of = "all VMs" if told_by.is_recommend_only_everywhere else "this VM or its namespace"
        headline = f"growth is only recommended for {of}, and none is permitted"
    if limit.code == ReasonCode.POOL_SATURATED and limit.retry_after_seconds:
        detail = _with(detail, f"it is asked again in {seconds(limit.retry_after_seconds)}")
    return SizeCause(limit.code, advice, detail, headline, rejection_of(limit.code))


def _with(detail: str, more: str) -> str:
    return f"{detail}; {more}" if detail and more else detail or more


# ---------------------------------------------------------------- nodes


def _node_head(room: Room) -> str:
    if not room.is_known:
        return f"the cluster does not show its node {room.node}"
    if room.over_full_because_of:
        while_settling = " while VMs settle" if room.over_full_because_of == (SETTLING,) else ""
        return f"its node {room.node} is over-full{while_settling}"
    return f"its node {room.node} has no more room"


def _of_node(room: Room, resource: str | None) -> str:
    if not room.is_known:
        return ""
    parts = []
    if room.over_full_because_of:
        held, most = _part(room.reserved, resource), _part(room.reservable, resource)
        parts.append(f"{held} of {most} are reserved because of {over_causes(room)}")
    if room.holders:
        largest = max(room.holders, key=lambda holder: _worth(holder.reserved, resource))
        left = len(room.holders) - 1 + room.more_holders
        more = f", and {left} {'other' if left == 1 else 'others'} hold the rest" if left else ""
        most = f" of {_part(room.reservable, resource)}"
        parts.append(f"{holder_name(largest)} holds {_part(largest.reserved, resource)}{most}{more}")
    return "; ".join(parts)


def over_causes(room: Room) -> str:
    """Why more is reserved on a node than may be. `settling` ends by itself, and says so."""
    causes = room.over_full_because_of
    return ", ".join(f"{each} ({_SETTLES})" if each == SETTLING else each for each in causes)


def _part(amount: AmountShown, resource: str | None) -> str:
    if resource == "cpu":
        return f"{amount.cpu} CPU"
    return f"{amount.memory} memory" if resource == "memory" else written(amount)


def _worth(amount: AmountShown, resource: str | None) -> int:
    return 0 if amount.worth is None else amount.worth[resource == "memory"]


def holder_name(holder: HolderShown) -> str:
    """A holder's name, with its kind if it is no VM."""
    return holder.name if holder.kind == "vm" else f"{holder.kind} {holder.name}"


def holders(listed: Sequence[HolderShown], more: int) -> str:
    shown = [f"{holder_name(each)} {written(each.reserved)}" for each in listed[:MAX_HOLDERS]]
    left = more + max(len(listed) - MAX_HOLDERS, 0)
    return ", ".join(shown) + (f", and {left} more" if left else "")


# ---------------------------------------------------------------- pools


def _of_pool(pool: PoolRoom) -> str:
    """The amounts that the pool's VMs hold, if the pool has a limit of its own."""
    if pool.most_units is None or pool.state in _POOL_HEADS:
        return ""
    shown = pool_holders(pool)
    return f"of its {counted(pool.most_units, 'unit')} {shown} and this VM {pool.vm_units}" if shown else ""


def pool_holders(pool: PoolRoom) -> str:
    """The largest holders of a pool in its units, and how many others there are."""
    shown = []
    for each in pool.holders[:MAX_HOLDERS]:
        count = _units(each.reserved, pool.unit)
        shown.append(f"{each.name} holds {count if count is not None else written(each.reserved)}")
    left = pool.more_holders + max(len(pool.holders) - MAX_HOLDERS, 0)
    return ", ".join(shown) + (f", {left} more VM{'s' if left > 1 else ''}" if left else "")


def _units(amount: AmountShown, unit: AmountShown | None) -> int | None:
    """How many units of a pool an amount counts for: the larger number of both resources."""
    if unit is None:
        return None
    steps = _worth(unit, "cpu"), _worth(unit, "memory")
    if not all(steps):
        return None
    return max(-(-_worth(amount, name) // step) for name, step in zip(("cpu", "memory"), steps, strict=True))


def load_of(vm: VmInFull) -> str:
    """The load in one line; empty if it is not known."""
    load = vm.load
    if load is None:
        return ""
    parts = []
    if load.busy_cpus is not None:
        parts.append(f"{load.busy_cpus:.2f} CPUs busy")
    elif load.load1 is not None:
        parts.append(f"load average {load.load1:.2f}")
    used = load.memory_used
    if used is not None:
        shown = f"{used / 2**30:.1f}Gi" if used >= 2**30 else f"{used / 2**20:.0f}Mi"
        parts.append(f"{shown} of memory in use")
    for stalled, word in ((load.cpu_pressure, "CPU"), (load.memory_pressure, "memory")):
        if stalled:
            parts.append(f"{stalled:.0f} % of the time waiting for {word}")
    return ", ".join(parts)


def containers_of(vm: VmInFull) -> ContainersShown:
    """The containers of a pod; of all else none that has a fault."""
    return vm.containers or ContainersShown()


def restarts_of(vm: VmInFull) -> str:
    """The restarts and OOM kills of a pod's containers in a few words; empty if there were none. A kill comes before its restart, and
    stays without one if the pod is never restarted."""
    found, kills = containers_of(vm), vm.counts.ends.get("OOMKilled", 0)
    if not found.restarts and not kills:
        return ""
    killed = f"{counted(kills, 'OOM kill')} since the agent's start" if kills else ""
    restarts = counted(found.restarts, "restart") if found.restarts else ""
    last = f"; last {found.last_end}" if found.last_end else ""
    joint = ", of which " if kills <= found.restarts else ", "
    return f"{joint.join(filter(None, (restarts, killed)))}{last}"


def pending_of(vm: VmInFull) -> str:
    """The thing that the VM's machine waits for; empty if it waits for nothing."""
    return (vm.machine.pending or "") if vm.machine is not None else ""


def named(amounts: RefusedDownscale | UrgentWish | None) -> str:
    """The resources that are there, with their amounts; empty without any."""
    if amounts is None:
        return ""
    found = (f"{amounts.cpu} CPU" if amounts.cpu else "", amounts.memory)
    return " / ".join(text for text in found if text)
