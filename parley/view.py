"""What the demo shows: a live table on a terminal, one line per change elsewhere, and the summary."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from parley.top.model import load
from parley.top.texts import MAX_LINE, ShownAmount, amount, clean, goal_reasons, kind
from protocol.values import Resources

Evidence = Literal["whole", "lost", "none"]
"""Of the change log: all of it was read, it was removed or cut meanwhile, or there never was a line."""
_CLAIMS: Final = {
    "whole": "never overcommitted",
    "lost": "what came later is not known, because the change log was removed or cut",
    "none": "no VM was heard of",
}
WIDE: Final = 110
"""The columns of a terminal on which the table has the reason for each VM in full."""
MAX_DETAILS: Final = 3
HEAD_LINES: Final = 5
"""The lines of a table beside its rows: title, head, rule, and blank ones."""
LEGEND: Final = (
    "goal, permit, size: CPUs/memory that a VM should have, may have, has (→ on its way); load: CPUs busy, or load "
    "average; why: code of the last refusal, or the peer that refused or failed"
)


def cpus(amount: Mapping[str, str] | None) -> str:
    """An amount as `CPU/memory`, or a dash."""
    return f"{amount['cpu']}/{amount['memory']}" if amount else "-"


def permit(vm: Mapping[str, Any]) -> str:
    """The last permit of a VM, and whether it has lapsed: the agent does not hold all of it any more."""
    permitted, held = amount(vm["permit"]), amount(vm["held"])
    is_lapsed = permitted is not None and held is not None and _is_below(held, permitted)
    return f"{cpus(vm['permit'])}{' (lapsed)' if is_lapsed else ''}"


def _is_below(held: ShownAmount, permitted: ShownAmount) -> bool:
    """Whether `held` is less in CPU or in memory; false for amounts that cannot be read."""
    if held.worth is None or permitted.worth is None:
        return False
    return any(has < may for has, may in zip(held.worth, permitted.worth, strict=True))


def reasons(vm: Mapping[str, Any]) -> tuple[str, ...]:
    """The present reasons for a VM's size: a fault, the reason of a refusal, or the policy's for each resource."""
    if vm["faults"]:
        return (str(vm["faults"][0]),)
    return (() if vm["reasonCode"] else goal_reasons(vm)) or (str(vm["reason"]),)


def why(vm: Mapping[str, Any]) -> str:
    """The present reasons for a VM's size, in one text."""
    return "; ".join(reasons(vm))


def code(vm: Mapping[str, Any]) -> str:
    """The reason in short: the peer with a fault, or the code of a refusal; empty where all is well."""
    if vm["faults"]:
        return str(vm["faults"][0]).partition(":")[0]
    return str(vm["reasonCode"] or "")


def beside(document: Mapping[str, Any]) -> Iterator[str]:
    """Lines about what an agent warns of, and about what it cannot scale although somebody wants it. Agents before these had none."""
    for vm in document["vms"]:
        for warning in vm.get("warnings") or ():
            yield f"{clean(vm['vm'])}: {clean(warning, MAX_LINE)}"
    for each in document.get("notScaled") or ():
        yield f"{clean(each['vm'])} is not scaled: {clean('; '.join(each['reasons']), MAX_LINE)}"


def screen(
    node: str,
    vms: Sequence[Mapping[str, Any]],
    footer: Sequence[str],
    width: int = 160,
    height: int | None = None,
) -> Group:
    """The live view: a table, and below it the footer, the reasons behind the table's codes, and a legend.

    On a narrow terminal the reasons stand below the table. `height` is that of a terminal
    on which all must be seen at once: reasons for goals are left out or folded where there is no room for them.
    """
    is_wide = width >= WIDE
    details = [] if is_wide else _details(vms)
    rest = [*footer, *details, LEGEND]
    used = len(vms) + HEAD_LINES + sum(-(-cell_len(each) // width) for each in rest)
    room = None if height is None else height - used
    goals = [] if is_wide else _goals(vms, width, room)
    is_folded = room is not None and room < sum(len(reasons(vm)) - 1 for vm in vms)
    shown = table(node, vms, is_wide=is_wide, is_folded=is_folded)
    # A terminal that is too low loses what stands last.
    below = [Text(each) for each in footer]
    below += [Text(each, style="yellow") for each in details]
    below += [Text(each) for each in goals]
    return Group(shown, *below, Text(LEGEND, style="dim"))


def table(node: str, vms: Sequence[Mapping[str, Any]], *, is_wide: bool, is_folded: bool = False) -> Table:
    """A row for each VM; a wide one has a line for each reason, unless `is_folded`. Texts of an agent are never read as markup."""
    made = Table(
        title=f"Parley on {node}: VMs being scaled by negotiation",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        expand=True,
    )
    last = "reason" if is_wide else "why"
    names = ["VM", "load", "goal", "permit", "size", "state", last]
    for name in names:
        made.add_column(name, no_wrap=True, ratio=1 if name == last else None)
    for vm in vms:
        size = f"{cpus(vm['size'])}{' →' if vm['size'] != vm['target'] else ''}"
        amounts = [load(vm)[1] or "-", cpus(vm["goal"]), permit(vm), size]
        words = ([why(vm)] if is_folded else reasons(vm)) if is_wide else [code(vm)]
        cells = [_name(vm), *amounts, str(vm["state"])]
        made.add_row(
            *(Text(clean(each)) for each in cells),
            Text("\n".join(map(clean, words))),
            style="yellow" if code(vm) else "",
        )
    return made


def _name(vm: Mapping[str, Any]) -> str:
    return clean(vm["vm"]).rpartition("/")[2]


def _details(vms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons behind the table's codes, in full, for the first VMs that have one."""
    noted = [f"{_name(vm)}: {clean(why(vm), MAX_LINE)}" for vm in vms if code(vm)]
    more = len(noted) - MAX_DETAILS
    return noted if more <= 0 else [*noted[:MAX_DETAILS], f"and {more} more, in `parley status`"]


def _goals(vms: Sequence[Mapping[str, Any]], width: int, room: int | None) -> list[str]:
    """The reasons for the goals of the VMs without a code, in full; as many as fit into `room` lines, None for any number."""
    found = []
    for vm in vms:
        text = "" if code(vm) else f"{_name(vm)}: {clean('; '.join(goal_reasons(vm)), MAX_LINE)}"
        if text and goal_reasons(vm):
            lines = -(-cell_len(text) // width)
            if room is not None and room < lines:
                break
            room = None if room is None else room - lines
            found.append(text)
    return found


def line(vm: Mapping[str, Any]) -> str:
    goal = f"{cpus(vm['goal'])} {kind(vm)}".rstrip()
    return clean(
        f"{vm['vm']}: load {load(vm)[1] or '-'}, goal {goal}, permit {permit(vm)}, "
        f"size {cpus(vm['size'])}, seq {vm['sequenceNumber']}, {why(vm)}",
        MAX_LINE,
    )


def key(vm: Mapping[str, Any]) -> tuple[str, str, str, object]:
    """The values whose change makes a new line worth printing."""
    return cpus(vm["goal"]), cpus(vm["permit"]), cpus(vm["size"]), vm["reasonCode"]


def summary(result: Mapping[str, Any]) -> str:
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
        lines += [f"    {note}" for note in found["notes"]]
    for name, node in result["nodes"].items():
        claim = "OVERCOMMITTED" if node["overcommits"] else _CLAIMS[node["evidence"]]
        lines.append(
            f"  {name}: at most {node['largest_cpu']:g} of {node['reservable_cpu']:g} CPUs and "
            f"{node['largest_memory_gib']:g} of {node['reservable_memory_gib']:g} GiB could be in use: {claim}"
        )
    lines += _apart(result["apart"])
    restarts = ", ".join(f"{name} {count}" for name, count in result["restarts"].items())
    if restarts:
        lines.append(f"  restarts: {restarts}")
    return "\n".join(lines)


def _apart(found: Mapping[str, Any]) -> list[str]:
    """What growing apart brought."""
    reserved, tied = (
        f"{found[key]['cpu']:g} CPUs / {found[key]['memory_gib']:g}Gi" for key in ("reserved", "tied")
    )
    lines = [f"  apart: at most {reserved} reserved; tied units would have reserved {tied}"]
    memory, cpu = found["grown"]["memory"], found["grown"]["cpu"]
    if memory is not None:
        lines.append(f"    {memory['vm']} grew to {memory['memory_gib']:g}Gi while the node had no CPU left")
    if cpu is not None:
        lines.append(f"    {cpu['vm']} grew to {cpu['cpu']:g} CPUs while the node had no memory left")
    return lines


def _when(what: str, seconds: float | None, since: str) -> str:
    if seconds is None:
        return f"was not seen to have {'grown' if what == 'had grown' else 'come back'}"
    return f"{what} {seconds:.1f} s {since}"


def node_figures(
    largest: Resources, reservable: Resources, overcommits: int, evidence: Evidence
) -> dict[str, float | str]:
    """One node's part of the summary. Without the whole change log it is not known what was in use meanwhile."""
    return {
        "largest_cpu": largest.vcpu_milli / 1000,
        "reservable_cpu": reservable.vcpu_milli / 1000,
        "largest_memory_gib": largest.memory_bytes / 2**30,
        "reservable_memory_gib": reservable.memory_bytes / 2**30,
        "overcommits": overcommits,
        "evidence": evidence,
    }
