"""The texts about a VM in the demo and `parley status`: the words of the live view, one line per change elsewhere, and the summary."""

import io
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from rich.console import Console, RenderableType

from parley.top.model import MAX_VMS, load
from parley.top.texts import MAX_LINE, amount_text, clean, goal_reasons, kind
from protocol.agent_pages import AgentVms, MachineShown, VmInShort, exceeds
from protocol.texts import counted
from protocol.values import Resources

Evidence = Literal["whole", "lost", "none"]
"""Of the change log: all of it was read, it was removed or cut meanwhile, or there never was a line."""
MAX_WARNINGS: Final = 64
_CLAIMS: Final = {
    "whole": "never overcommitted",
    "lost": "what came later is not known, because the change log was removed or cut",
    "none": "no VM was heard of",
}


def name(vm: VmInShort) -> str:
    """`NAMESPACE/NAME`, as long as a cell may be."""
    return clean(vm.vm)


def permit(vm: VmInShort) -> str:
    """The last permit of a VM, and whether it has lapsed: the agent does not hold all of it any more."""
    return f"{amount_text(vm.permit)}{' (lapsed)' if exceeds(vm.permit, vm.held) else ''}"


def reasons(vm: VmInShort) -> tuple[str, ...]:
    """The present reasons for a VM's size: a fault, the reason of a refusal, or the policy's for each resource. The wait of its
    machine, if any, comes last."""
    found: tuple[str, ...] = vm.faults[:1] or (() if vm.reason_code else goal_reasons(vm)) or (vm.reason,)
    pending = vm.machine.pending if vm.machine is not None else None
    return (*found, pending) if pending else found


def pressure(vm: VmInShort) -> str:
    """Per cent of the last period in which tasks of the guest waited for CPU and for memory, as `97/3`; a dash if nothing is known."""
    if vm.load is None or not load(vm)[1]:
        return "-"
    found = (vm.load.cpu_pressure, vm.load.memory_pressure)
    return "-" if found == (None, None) else "/".join(map(_whole, found))


def vcpus(vm: VmInShort) -> str:
    """The vCPUs of a machine, as `online/plugged`; the guest alone says what is online."""
    found = vm.machine or MachineShown()
    return f"{_whole(found.vcpus_online)}/{_whole(found.vcpus_plugged)}"


def slots(vm: VmInShort) -> str:
    """The memory slots of a machine, as `plugged/being ejected`."""
    found = (vm.machine or MachineShown()).memory_slots
    return f"{_whole(found.plugged)}/{_whole(found.ejecting)}"


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def why(vm: VmInShort) -> str:
    """The present reasons for a VM's size, in one text."""
    return "; ".join(reasons(vm))


def code(vm: VmInShort) -> str:
    """The reason in short: the peer with a fault, or the code of a refusal; empty if all is well."""
    return vm.faults[0].partition(":")[0] if vm.faults else vm.reason_code or ""


def notes(document: AgentVms) -> Iterator[str]:
    """Lines about what an agent warns of, and about what it cannot scale although somebody wants it."""
    for vm in document.vms:
        for warning in vm.warnings[:MAX_WARNINGS]:
            yield f"{name(vm)}: {warning}"
    for each in document.not_scaled[:MAX_VMS]:
        yield f"{clean(each.vm)} is not scaled: {clean('; '.join(each.reasons[:MAX_WARNINGS]), MAX_LINE)}"


def line(vm: VmInShort) -> str:
    """All that is told of a VM in one line; a value that its agent does not say is a dash or a question mark."""
    goal = f"{amount_text(vm.goal)} {kind(vm)}".rstrip()
    machine = ""
    if vm.machine is not None:
        machine = (
            f"PSI {pressure(vm)} %, vCPUs {vcpus(vm)} online/plugged, slots {slots(vm)} plugged/ejecting, "
        )
    return clean(
        f"{name(vm)}: load {load(vm)[1] or '-'}, {machine}goal {goal}, permit {permit(vm)}, "
        f"size {amount_text(vm.size)}, seq {_whole(vm.sequence_number)}, {_restarted(vm)}{why(vm)}",
        MAX_LINE,
    )


def _restarted(vm: VmInShort) -> str:
    """The number of restarts of a pod's containers since its agent's start; empty if there were none."""
    restarts, kills = vm.counts.restarts, vm.counts.ends.get("OOMKilled", 0)
    return f"restarts {restarts} (OOM kills {kills}), " if restarts or kills else ""


def key(vm: VmInShort) -> tuple[object, ...]:
    """The values whose change makes a new line worth printing."""
    machine = (vcpus(vm), slots(vm)) if vm.machine is not None else ()
    return vm.goal, vm.permit, vm.size, vm.reason_code, *machine


def summary(result: Mapping[str, Any]) -> str:
    lines = ["", f"Ran {result['seconds']:.0f} s."]
    for vm_name, vm in result["vms"].items():
        refusals = ", ".join(f"{code} {count}" for code, count in vm["refusals"].items()) or "none"
        lines.append(f"  {vm_name}: permits {vm['permits']}, resizes {vm['resizes']}, refusals: {refusals}")
        lines += _restarts(vm)
        if differs := result["mismatches"].get(vm_name):
            lines.append(f"    at its end: {clean(differs, MAX_LINE)}")
        lines += [f"    {_moved(result['sizes'][vm_name])}"] if vm_name in result["sizes"] else []
    found = result["load"]
    if found is not None:
        lines.append(
            f"  load: this-machine {_when('had grown', found['growth_s'], 'after its start')} and "
            f"{_when('was back', found['shrink_s'], 'after its end')}"
        )
        lines += [f"    {note}" for note in found["notes"]]
    for node_name, node in result["nodes"].items():
        claim = "OVERCOMMITTED" if node["overcommits"] else _CLAIMS[node["evidence"]]
        lines.append(
            f"  {node_name}: at most {node['largest_cpu']:g} of {counted(node['reservable_cpu'], 'CPU')} and "
            f"{node['largest_memory_gib']:g} of {node['reservable_memory_gib']:g} GiB could be in use: {claim}"
        )
    lines += _apart(result["apart"])
    restarts = ", ".join(f"{program} {count}" for program, count in result["restarts"].items())
    if restarts:
        lines.append(f"  restarts: {restarts}")
    return "\n".join(lines)


def _restarts(vm: Mapping[str, Any]) -> list[str]:
    """How often containers of a pod were restarted, and how those ended that did."""
    ends = dict(vm["ends"])
    kills = ends.pop("OOMKilled", 0)
    if not vm["restarts"] and not kills and not ends:
        return []
    others = "".join(f", {reason} {count}" for reason, count in ends.items())
    times = "once" if vm["restarts"] == 1 else f"{vm['restarts']} times"
    return [f"    containers restarted {times}; ended by: OOM kills {kills}{others}"]


def _moved(found: Mapping[str, Any]) -> str:
    """How a VM grew and shrank."""
    words = []
    for key, unit, units in (("cpu", "CPU", "CPUs"), ("memory_gib", "GiB", "GiB")):
        if (each := found[key]) is None:
            continue
        if each["up"] or each["down"]:
            words.append(
                f"{each['least']:g} to {counted(each['most'], unit, units)} ({counted(each['up'], 'time')} up, {each['down']} down), now {each['last']:g}"
            )
        else:
            words.append(f"always {counted(each['last'], unit, units)}")
    return "; ".join(words) or "no size was seen"


def _apart(found: Mapping[str, Any]) -> list[str]:
    reserved, tied = (
        f"{counted(found[key]['cpu'], 'CPU')} / {found[key]['memory_gib']:g}Gi"
        for key in ("reserved", "tied")
    )
    lines = [f"  apart: at most {reserved} reserved; tied units would have reserved {tied}"]
    memory, cpu = found["grown"]["memory"], found["grown"]["cpu"]
    if memory is not None:
        lines.append(f"    {memory['vm']} grew to {memory['memory_gib']:g}Gi while the node had no CPU left")
    if cpu is not None:
        lines.append(
            f"    {cpu['vm']} grew to {counted(cpu['cpu'], 'CPU')} while the node had no memory left"
        )
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


WIDTH: Final = 100
HEIGHT: Final = 32
"""Of every picture, in characters, on any terminal."""
FONTS: Final = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
ASPECT: Final = 0.602
"""Width by height of a character of the first two fonts; in others, letters are set apart or together to fit."""

# As rich's own template, without fonts from another host.
_FORMAT: Final = f"""<svg viewBox="0 0 {{width}} {{height}}" xmlns="http://www.w3.org/2000/svg">
<style>
.{{unique_id}}-matrix {{{{ font-family: {FONTS}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
.{{unique_id}}-title {{{{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal"><rect x="0" y="0" width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def svg(view: RenderableType, title: str) -> str:
    """The picture of a view that was made for `WIDTH` and `HEIGHT`."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    blank = HEIGHT - len(console.render_lines(view, pad=False))
    console.print(view)
    console.print("\n" * (blank - 1) if blank > 1 else "", end="\n" if blank > 0 else "")
    return console.export_svg(title=title, code_format=_FORMAT, font_aspect_ratio=ASPECT, unique_id="parley")
