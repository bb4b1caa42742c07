"""Opens every source of events that the guest has: the limits of the workload's cgroup, and pressure."""

from functools import partial
from pathlib import Path
from typing import Final

from informant.guest import watching
from informant.guest.cgroup import Cgroup
from informant.guest.findings import Finding, reason_of
from informant.guest.watching import EventSource, SourceName
from informant.settings import InformantSettings

PRESSURE: Final = Path("/proc/pressure")
NOT_WANTED: Final = "not wanted by the settings"


def open_all(
    cgroup: Cgroup | None, settings: InformantSettings, pressure: Path = PRESSURE
) -> tuple[tuple[EventSource, ...], tuple[Finding, ...]]:
    """The open sources, which the caller closes, and findings on all of them. Needs a running event loop."""
    sources: list[EventSource] = []
    findings: list[Finding] = []
    if cgroup is not None and "memory.events" not in cgroup.lacks():
        path = cgroup.path / "memory.events"
        source = watching.LastingSource(path, partial(watching.listen, path, settings.sources()))
        sources.append(source)
        findings.append(Finding("events of memory.events", True, _told(source.name, source.lacks)))
    for resource, share, over_s in (
        ("memory", settings.memory.waiting_share, settings.memory.over),
        ("cpu", settings.cpu.waiting_share, settings.cpu.over),
    ):
        own = cgroup.path / f"{resource}.pressure" if cgroup is not None else None
        path = own if own is not None and own.exists() else pressure / resource
        name = f"trigger of {path}"
        if share is None or settings.events not in ("auto", "poll"):
            findings.append(Finding(name, False, NOT_WANTED))
            continue
        try:
            trigger = watching.LastingSource(path, partial(_trigger, path, share, over_s))
        except OSError as error:
            findings.append(Finding(name, False, reason_of(error)))
        else:
            sources.append(trigger)
            findings.append(Finding(name, True, trigger.told))
    return tuple(sources), tuple(findings)


def _trigger(path: Path, share: float, over_s: float) -> tuple[EventSource, dict[str, str]]:
    return watching.pressure(path, share, over_s), {}


def _told(name: SourceName, lacks: dict[str, str]) -> str:
    return "; ".join([f"by {name}", *(f"no {other}: {why}" for other, why in lacks.items())])
