"""The agent's settings file: `parley-agent --config FILE`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from agent.backends.faults import Faults
from agent.core.model import Vm
from agent.core.timing import Timing
from agent.daemon import policies, windows
from hosting.addresses import AdvertiseSetting
from hosting.amounts import Memory, PositiveResources, Resources, bounds_fault
from hosting.settings import Name, Settings
from hosting.tls import TlsFiles
from protocol.values import Bounds
from protocol.wire import PodName


def _is_url(value: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:  # a port beyond all ports, a bracket without its other one
        return False
    is_plain = value.isascii() and value.isprintable() and not any(part.isspace() for part in value)
    return parts.scheme in schemes and bool(parts.hostname) and port != 0 and is_plain


def _scheduler_url(value: str) -> str:
    if not _is_url(value, ("http", "https")):
        raise ValueError("must be a URL such as http://127.0.0.1:10299/, its port from 1 to 65535")
    return value


def _informant_url(value: str) -> str:
    if not _is_url(value, ("http",)):
        rule = "must be a URL such as http://127.0.0.1:10301, its port from 1 to 65535"
        raise ValueError(f"{rule} (informants speak no https)")
    return value


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a path")
    return Path(value)


SchedulerUrl = Annotated[str, Field(max_length=512), AfterValidator(_scheduler_url)]
InformantUrl = Annotated[str, Field(max_length=512), AfterValidator(_informant_url)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
File = Annotated[Path, BeforeValidator(_path)]


class VmEntry(Settings):
    """A VM on this node: its pod, bounds and informant. `initial` is the size that a simulated VM is made with."""

    namespace: Name
    name: Name
    uid: Annotated[str, Field(min_length=1, max_length=64)]
    informant: InformantUrl
    min: PositiveResources
    max: Resources
    compute_unit: PositiveResources
    slot_size: Annotated[int, Memory, Field(gt=0)] | None = None
    initial: PositiveResources | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
    """Per VM: `parley.dev/config` with policies and windows, `parley.dev/bounds`; a wrong value is reported and ignored."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The bounds fit together."""
        return bounds_fault(found.get("min"), found.get("max"))

    def vm(self) -> Vm:
        """The VM as the core knows it."""
        return Vm(
            PodName(self.name, self.namespace),
            self.uid,
            Bounds(self.min, self.max),
            self.compute_unit,
            self.slot_size or self.compute_unit.memory_bytes,
        )


class Periods(Settings):
    """How often, in seconds. The defaults suit a node; the demo is quicker."""

    metrics: Seconds = 5.0
    tick: Annotated[float, Field(gt=0, le=25)] = 15.0
    """At least this often a request goes to the scheduler; below the 30 s for which a permit is worth something."""
    down_window: Seconds = 30.0
    """The goal falls only to the highest goal of so many seconds."""


class TlsSettings(Settings):
    """Files in PEM, read again when they change, and the port where people on other machines are served with them."""

    ca: File | None = None
    """The authorities whose https:// schedulers are believed; without it those of the system."""
    certificate: File | None = None
    """Ours, with its chain: shown at `port`, and to schedulers that ask for one."""
    key: File | None = None
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Where `/v1/vms`, `/metrics` and the health pages are served with TLS, beside the plain port that informants call."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A certificate has its key, and a port has both."""
        if "certificate" not in found or "key" not in found:
            return
        certificate, key = found["certificate"], found["key"]
        if (certificate is None) != (key is None):
            yield (
                "key" if key is None else "certificate",
                "certificate and key belong together: give both or neither",
            )
        if found.get("port") is not None and certificate is None:
            yield "port", "needs a certificate and its key"

    def files(self) -> TlsFiles:
        """The files as `hosting.tls` takes them."""
        return TlsFiles(self.certificate, self.key, self.ca)


class AgentSettings(Settings):
    """The whole file."""

    node: Name
    scheduler: SchedulerUrl
    other_schedulers: Annotated[list[SchedulerUrl], Field(max_length=8)] = Field(default_factory=list)
    """Asked in turn where `scheduler` does not answer or does not lead."""
    state_directory: File
    advertise: AdvertiseSetting | None = None
    """Where informants call back: an address or a network interface, with a port where that differs; else `--host`."""
    tls: TlsSettings = TlsSettings()
    metrics_prefix: Annotated[str, Field(pattern=r"^[a-z_]*$", max_length=32)] = "node_"
    policies: list[Any] = Field(default_factory=lambda: list(policies.DEFAULT))
    """What turns load into a goal: names, or `{name, args}`; the highest wish wins."""
    windows: list[Any] = Field(default_factory=list)
    """Floors and ceilings by the time of day, for every VM without windows of its own."""
    periods: Periods = Periods()
    resize_delay: Annotated[float, Field(ge=0, le=60)] = 0.2
    """Seconds that a simulated VM takes to reach its target."""
    faults: Faults = Faults()
    """What goes wrong with simulated VMs; nothing by default."""
    vms: list[VmEntry] = Field(default_factory=list)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """VMs with the same name, and policies and windows that cannot be used."""
        if not isinstance(data, dict):
            return []
        faults, seen = [], set()
        if "policies" in data:
            faults += policies.faults_of(data["policies"], policies.standard())
        if "windows" in data:
            faults += windows.faults_of(data["windows"])
        found = data.get("vms")
        for index, entry in enumerate(found if isinstance(found, list) else []):
            if isinstance(entry, dict):
                name = (str(entry.get("namespace")), str(entry.get("name")))
                if name in seen:
                    faults.append(f"vms[{index}].name: {'/'.join(name)!r} is used more than once")
                seen.add(name)
        return faults

    @property
    def schedulers(self) -> tuple[str, ...]:
        """Every scheduler that may be asked."""
        return (self.scheduler, *self.other_schedulers)

    def timing(self) -> Timing:
        """The core's waits with the periods of this file."""
        return Timing(
            tick_s=self.periods.tick,
            metrics_s=self.periods.metrics,
            metrics_stale_s=max(15.0, 3 * self.periods.metrics),
            down_window_s=self.periods.down_window,
        )
