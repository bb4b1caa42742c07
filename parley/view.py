"""What the demo shows: a live table on a terminal, one line per change elsewhere, and the summary."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from protocol.values import Resources


def cpus(amount: Mapping[str, str] | None) -> str:
    """An amount as `CPU/memory`, or a dash."""
    return f"{amount['cpu']}/{amount['memory']}" if amount else "-"


def load(vm: Mapping[str, Any]) -> str:
    """The load of a VM: busy CPUs where known, else the load average."""
    found = vm["load"]
    if not found:
        return "-"
    busy = found["busyCPUs"]
    return f"{busy:.2f} busy" if busy is not None else f"{found['load1']:.2f} load"


def table(node: str, vms: list[Mapping[str, Any]], notes: list[str], footer: str) -> Table:
    """The live table."""
    made = Table(title="Parley: VMs being scaled by negotiation (Ctrl-C ends)", expand=True, caption=footer)
    for name in ("VM", "node", "load", "goal", "permit", "size", "seq", "last reason"):
        made.add_column(name, justify="right" if name == "seq" else "left", no_wrap=name != "last reason")
    for vm in vms:
        is_moving = vm["size"] != vm["target"]
        size = f"{cpus(vm['size'])}{' →' if is_moving else ''}"
        why = vm["faults"][0] if vm["faults"] else vm["reason"]
        style = "yellow" if vm["reasonCode"] or vm["faults"] else ""
        name = vm["vm"].split("/", 1)[1]
        made.add_row(
            name,
            node,
            load(vm),
            cpus(vm["goal"]),
            cpus(vm["permit"]),
            size,
            str(vm["sequenceNumber"]),
            why,
            style=style,
        )
    for note in notes[-3:]:
        made.add_row("", "", "", "", "", "", "", note, style="red")
    return made


def line(vm: Mapping[str, Any]) -> str:
    """One VM as one line."""
    why = vm["faults"][0] if vm["faults"] else vm["reason"]
    return (
        f"{vm['vm']}: load {load(vm)}, goal {cpus(vm['goal'])}, permit {cpus(vm['permit'])}, "
        f"size {cpus(vm['size'])}, seq {vm['sequenceNumber']}, {why}"
    )


def key(vm: Mapping[str, Any]) -> tuple[str, str, str, object]:
    """What makes a new line worth printing."""
    return cpus(vm["goal"]), cpus(vm["permit"]), cpus(vm["size"]), vm["reasonCode"]


def summary(result: Mapping[str, Any]) -> str:
    """The summary for people."""
    lines = ["", f"Ran {result['seconds']:.0f} s."]
    for name, vm in result["vms"].items():
        refusals = ", ".join(f"{code} {count}" for code, count in vm["refusals"].items()) or "none"
        lines.append(f"  {name}: {vm['permits']} permits, {vm['resizes']} resizes, refusals: {refusals}")
    found = result["load"]
    if found is not None:
        lines.append(
            f"  load: this-machine had grown {_seconds(found['growth_s'])} after its start and was back "
            f"{_seconds(found['shrink_s'])} after its end"
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


def _seconds(value: float | None) -> str:
    return "never (while it was watched)" if value is None else f"{value:.1f} s"


def node_figures(largest: Resources, reservable: Resources, overcommits: int) -> dict[str, float]:
    """One node's line of the summary."""
    return {
        "largest_cpu": largest.vcpu_milli / 1000,
        "reservable_cpu": reservable.vcpu_milli / 1000,
        "largest_memory_gib": largest.memory_bytes / 2**30,
        "reservable_memory_gib": reservable.memory_bytes / 2**30,
        "overcommits": overcommits,
    }
