"""What the demo shows: a live table on a terminal, one line per change elsewhere, and the summary."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from protocol.values import Resources

STALE_S = 15.0


def cpus(amount: Mapping[str, str] | None) -> str:
    """An amount as `CPU/memory`, or a dash."""
    return f"{amount['cpu']}/{amount['memory']}" if amount else "-"


def load(vm: Mapping[str, Any]) -> str:
    """The load of a VM: busy CPUs where known, else the load average; a dash when the last reading is old."""
    found, age_s = vm["load"], vm["metricsAgeSeconds"]
    if not found or age_s is None or age_s > STALE_S:
        return "-"
    busy = found["busyCPUs"]
    return f"{busy:.2f} busy" if busy is not None else f"{found['load1']:.2f} avg"


def why(vm: Mapping[str, Any]) -> str:
    """The last word on a VM: a fault, the reason of a refusal, or the policy's."""
    return str(vm["faults"][0] if vm["faults"] else vm["reason"])


def table(node: str, vms: list[Mapping[str, Any]], notes: list[str], footer: str, width: int = 160) -> Table:
    """The live table. On a narrow terminal the node stands in the title only, and the reason is cut."""
    is_wide = width >= 110
    made = Table(
        title=f"Parley on {node}: VMs being scaled by negotiation (Ctrl-C ends)",
        caption=footer,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        expand=True,
    )
    for name in ("VM", "node", "load", "goal", "permit", "size", "seq", "last reason"):
        if name != "node" or is_wide:
            is_last = name == "last reason"
            made.add_column(
                name, no_wrap=True, justify="right" if name == "seq" else "left", ratio=1 if is_last else None
            )
    for vm in vms:
        size = f"{cpus(vm['size'])}{' →' if vm['size'] != vm['target'] else ''}"
        cells = [load(vm), cpus(vm["goal"]), cpus(vm["permit"]), size, str(vm["sequenceNumber"]), why(vm)]
        names = [vm["vm"].split("/", 1)[1], node] if is_wide else [vm["vm"].split("/", 1)[1]]
        made.add_row(*names, *cells, style="yellow" if vm["reasonCode"] or vm["faults"] else "")
    if notes:
        made.caption = f"{footer}\n" + "\n".join(notes[-3:])
    return made


def line(vm: Mapping[str, Any]) -> str:
    """One VM as one line."""
    return (
        f"{vm['vm']}: load {load(vm)}, goal {cpus(vm['goal'])}, permit {cpus(vm['permit'])}, "
        f"size {cpus(vm['size'])}, seq {vm['sequenceNumber']}, {why(vm)}"
    )


def key(vm: Mapping[str, Any]) -> tuple[str, str, str, object]:
    """What makes a new line worth printing."""
    return cpus(vm["goal"]), cpus(vm["permit"]), cpus(vm["size"]), vm["reasonCode"]


def summary(result: Mapping[str, Any]) -> str:
    """The summary for people."""
    lines = ["", f"Ran {result['seconds']:.0f} s."]
    for name, vm in result["vms"].items():
        refusals = ", ".join(f"{code} {count}" for code, count in vm["refusals"].items()) or "none"
        lines.append(f"  {name}: permits {vm['permits']}, resizes {vm['resizes']}, refusals: {refusals}")
    found = result["load"]
    if found is not None:
        lines.append(
            f"  load: this-machine {_when('had grown', found['growth_s'], 'after its start')} and "
            f"{_when('was back', found['shrink_s'], 'after its end')}"
        )
    for name, node in result["nodes"].items():
        word = "OVERCOMMITTED" if node["overcommits"] else "never overcommitted"
        lines.append(
            f"  {name}: at most {node['largest_cpu']:g} of {node['reservable_cpu']:g} CPUs and "
            f"{node['largest_memory_gib']:g} of {node['reservable_memory_gib']:g} GiB could be in use: {word}"
        )
    restarts = ", ".join(f"{name} {count}" for name, count in result["restarts"].items())
    if restarts:
        lines.append(f"  restarts: {restarts}")
    return "\n".join(lines)


def _when(what: str, seconds: float | None, since: str) -> str:
    if seconds is None:
        return f"was not seen to have {'grown' if what == 'had grown' else 'come back'}"
    return f"{what} {seconds:.1f} s {since}"


def node_figures(largest: Resources, reservable: Resources, overcommits: int) -> dict[str, float]:
    """One node's line of the summary."""
    return {
        "largest_cpu": largest.vcpu_milli / 1000,
        "reservable_cpu": reservable.vcpu_milli / 1000,
        "largest_memory_gib": largest.memory_bytes / 2**30,
        "reservable_memory_gib": reservable.memory_bytes / 2**30,
        "overcommits": overcommits,
    }
