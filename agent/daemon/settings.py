"""The agent's settings file: `parley-agent --config FILE`."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from agent.backends import factories
from agent.backends.faults import Faults
from agent.core.timing import Timing
from agent.daemon import annotations, policies, windows
from agent.daemon.node_settings import PluginSettings, QemuSettings, QosSettings
from agent.sources.file import VmList, VmSettings
from hosting.addresses import UNIX, checked_socket, is_own, is_url
from hosting.settings import AdvertiseSetting, Name, PathSetting, Settings, listed
from hosting.tls import TlsFiles
from protocol import quantities
from protocol.values import Resources

BLOCK_BYTES: Final = 128 * 2**20
"""Memory of a Linux guest comes in blocks of this size. QEMU takes other DIMMs as well; the guest uses none of them, and none that follow."""


def guest_faults(data: Mapping[Any, Any]) -> list[str]:
    """The faults of a raw settings file's VMs that concern its back end. The amounts of an entry that is no valid VM are not
    checked here: other checks tell its faults."""
    is_qemu = data.get("backend") == "qemu"
    faults: list[str] = []
    sockets: set[str] = set()
    for index, entry in enumerate(listed(data, "vms")):
        if not isinstance(entry, dict):
            continue
        where = f"vms[{index}]"
        if is_qemu and entry.get("qmp") is None:
            faults.append(f"{where}.qmp: is needed by the back end qemu: the socket of the guest's QMP")
        if entry.get("qmp") is not None:
            # The second VM would command the first one's guest as soon as the first one lets its connection go.
            if str(entry["qmp"]) in sockets:
                faults.append(f"{where}.qmp: {entry['qmp']!r} is used more than once")
            sockets.add(str(entry["qmp"]))
        if not is_qemu and entry.get("qmp") is not None:
            faults.append(f"{where}.qmp: goes with the back end qemu only")
        if is_qemu:
            faults += (f"{where}.{fault}" for fault in _amount_faults(entry))
    return faults


def _amount_faults(entry: Mapping[str, Any]) -> Iterator[str]:
    try:
        vm = VmSettings.model_validate(entry)
    except ValidationError:
        return
    if vm.slot_bytes % BLOCK_BYTES:
        field = "computeUnit.memory" if vm.slot_size is None else "slotSize"
        yield f"{field}: must be a multiple of 128Mi, not {_memory(vm.slot_bytes)}"
    for name, amount in (("min", vm.min), ("max", vm.max), ("computeUnit", vm.compute_unit)):
        yield from _whole(name, amount, vm.slot_bytes)


def _whole(name: str, amount: Resources, slot_bytes: int) -> Iterator[str]:
    if amount.vcpu_milli % 1000:
        cpus = quantities.from_milli(amount.vcpu_milli).canonical()
        yield f"{name}.cpu: must be whole vCPUs, not {cpus}"
    if amount.memory_bytes % slot_bytes:
        slot = _memory(slot_bytes)
        yield f"{name}.memory: must be whole slots of {slot}, not {_memory(amount.memory_bytes)}"


def _memory(amount: int) -> str:
    return quantities.from_value(amount, binary=True).canonical()


NODE_VARIABLE: Final = "NODE_NAME"
"""The environment variable that names the node if the file leaves it out: a DaemonSet has one file for all its nodes."""


def _scheduler_url(value: str) -> str:
    if not is_url(value, ("http", "https")):
        raise ValueError("must be a URL such as http://127.0.0.1:10299/, its port from 1 to 65535")
    return value


def _is_readable(url: str) -> bool:
    """Whether what is sent there travels in the clear beyond this machine."""
    return not url.startswith("https:") and not is_own(urlsplit(url).hostname or "")


def _service(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]{1,63}/[a-z0-9-]{1,63}", value):
        raise ValueError("must be NAMESPACE/NAME of a Service, such as parley-system/parley-scheduler")
    return value


def _scheduler(value: object) -> object:
    """A URL by itself is short for `{url: URL}`."""
    if isinstance(value, str):
        return {"url": _scheduler_url(value)}
    if not isinstance(value, dict | SchedulerSettings):
        raise ValueError("must be a URL such as http://127.0.0.1:10299/, or {service: NAMESPACE/NAME}")
    return value


def _backend(value: str) -> str:
    if value not in factories.FACTORIES:
        raise ValueError(f"must be one of {', '.join(sorted(factories.FACTORIES))}")
    return value


def _node_informant(value: str) -> str:
    if value.startswith(UNIX):
        return f"{UNIX}{checked_socket(value.removeprefix(UNIX))}"
    if not is_url(value, ("http",)):
        raise ValueError("must be unix:/PATH/OF/A/SOCKET, or a URL such as http://127.0.0.1:10302")
    return value


NodeInformantUrl = Annotated[str, Field(max_length=512), AfterValidator(_node_informant)]
SchedulerUrl = Annotated[str, Field(max_length=512), AfterValidator(_scheduler_url)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


class Periods(Settings):
    """How often, in seconds. The defaults suit a node; the demo is quicker."""

    metrics: Seconds = 5.0
    tick: Annotated[float, Field(gt=0, le=25)] = 15.0
    """At least this often a request goes to the scheduler; below the 30 s for which a permit is worth something."""
    down_window: Seconds = 300.0
    """The goal falls only to the highest goal of so many seconds."""


class TlsSettings(Settings):
    """Files in PEM, read again when they change, and the port that serves people on other machines with them."""

    ca: PathSetting | None = None
    """The authorities trusted for https:// schedulers; by default those of the system."""
    certificate: PathSetting | None = None
    """The agent's certificate with its chain: shown at `port`, and to schedulers that ask for a certificate."""
    key: PathSetting | None = None
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """The port of `/v1/vms`, `/metrics` and the health pages with TLS, beside the plain port that informants call."""

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
        return TlsFiles(self.certificate, self.key, self.ca)


class SchedulerSettings(Settings):
    """The address of the scheduler: a URL, or a Service of Kubernetes whose ready endpoints are asked."""

    url: SchedulerUrl | None = None
    service: Annotated[str, AfterValidator(_service)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 10299
    """The endpoints' port."""
    token_file: PathSetting | None = None
    """A file with the token that is shown to the scheduler, such as a projected token of the pod's service account. It is read again."""
    server_name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.-]+$")] | None = (
        None
    )
    """The name that the schedulers' certificate is for, if it is not the host of their URL. A Service's endpoints are asked with TLS where it is
    given, and in the clear otherwise."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A URL or a Service is named, one of them; and neither a name nor a token goes with the clear."""
        if not {"url", "service", "server_name", "token_file"} <= found.keys():
            return
        url, service, server_name = found["url"], found["service"], found["server_name"]
        if (url is None) == (service is None):
            yield "", "needs url or service, and one of them only"
            return
        is_plain = not url.startswith("https:") if url is not None else server_name is None
        if is_plain and server_name is not None:
            yield "serverName", "is for a url with https, or a service"
        if found["token_file"] is not None and (server_name is None if url is None else _is_readable(url)):
            yield (
                "tokenFile",
                "would travel in the clear: use a url with https, or give the serverName of the service",
            )

    @property
    def scheme(self) -> str:
        """Of the endpoints of a Service."""
        return "http" if self.server_name is None else "https"


class KubernetesSettings(Settings):
    """How the API server is reached, and the pods' informant."""

    kubeconfig: PathSetting | None = None
    """By default the service account of the agent's pod."""
    context: str | None = None
    """A context of the kubeconfig; by default its current one."""
    informant: NodeInformantUrl = f"{UNIX}/run/parley/informant.sock"
    """The node informant, for pods without an informant of their own: `unix:` and its socket, or an http:// URL."""
    callback_socket: Annotated[str, AfterValidator(checked_socket)] = "/run/parley/agent.sock"
    """The Unix socket that the agent makes, at which a node informant at a socket calls back."""
    denied_after: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Seconds for which a pod's needs must have been denied before that is told: by an Event, by the condition `parley.dev/Denied`."""
    predicted_requests: bool = False
    """Whether a pod that is denied for so long, for want of room, gets the annotation `autoscaling.k8s.io/predicted-pod-requests`."""
    evict_after: Annotated[float, Field(ge=30, le=86_400)] = 600.0
    """Seconds for which a pod's needs must have been denied before it is evicted, if it allows that."""

    @property
    def informant_base(self) -> str:
        """What begins the URL of each page of the node informant."""
        return f"{self.informant}:" if self.informant.startswith(UNIX) else self.informant


class AgentSettings(VmList):
    """The whole file."""

    node: Name
    source: Literal["file", "kubernetes"] = "file"
    """Which VMs there are: those of this file, or pods and VirtualMachines of the node."""
    scheduler: Annotated[SchedulerSettings, BeforeValidator(_scheduler)]
    other_schedulers: Annotated[list[SchedulerUrl], Field(max_length=8)] = Field(default_factory=list)
    """Asked in turn if `scheduler` does not answer or does not lead."""
    state_directory: PathSetting
    advertise: AdvertiseSetting | None = None
    """The address that informants call: an address or a network interface, with a port if that differs; else `--host`."""
    tls: TlsSettings = TlsSettings()
    metrics_prefix: Annotated[str, Field(pattern=r"^[a-z_]*$", max_length=32)] = "node_"
    policies: list[Any] = Field(default_factory=lambda: list(policies.DEFAULT))
    """The policies that turn load into a goal: names, or `{name, args}`; the highest goal wins."""
    windows: list[Any] = Field(default_factory=list)
    """Floors and ceilings by the time of day, for every VM without windows of its own."""
    tied: bool = False
    """Whether VMs have one number of units for CPU and memory, if nothing else is said of a VM."""
    periods: Periods = Periods()
    backend: Annotated[str, AfterValidator(_backend)] = "simulated"
    """The back end that resizes the VMs: a name of `agent.backends.factories`."""
    resize_delay: Annotated[float, Field(ge=0, le=60)] = 0.2
    """Seconds that a simulated VM takes to reach its target."""
    faults: Faults = Faults()
    """The faults of simulated VMs; none by default."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    qemu: QemuSettings = QemuSettings()
    plugins: PluginSettings = PluginSettings()
    qos: QosSettings | None = None
    """Strategies on the node; none if it is left out, and the command line names none."""

    @model_validator(mode="before")
    @classmethod
    def _with_node(cls, data: object) -> object:
        """The environment names the node if the file does not."""
        named = os.environ.get(NODE_VARIABLE)
        return {"node": named, **data} if named and isinstance(data, dict) else data

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The settings of Kubernetes belong together."""
        source, backend, vms = found.get("source"), found.get("backend"), found.get("vms")
        if source == "kubernetes" and vms:
            yield "vms", "must be left out where the source is kubernetes"
        if source == "file" and backend == "kubernetes":
            yield "backend", "kubernetes needs the source kubernetes"
        if source == "kubernetes" and backend is not None and backend != "kubernetes":
            yield (
                "backend",
                f"must be kubernetes, as the source is: {backend} would tell sizes that no pod has",
            )
        scheduler = found.get("scheduler")
        if scheduler is not None and scheduler.token_file is not None:
            for index, url in enumerate(found.get("other_schedulers", ())):
                if _is_readable(url):
                    yield f"otherSchedulers.{index}", "gets the token of scheduler.tokenFile, too: use https"
        qos = found.get("qos")
        if source == "file" and qos is not None:
            objects = {
                "nodeMetric": qos.node_metric,
                "nodeTopology": qos.node_topology,
                "deviceInventory": qos.device_inventory,
            }
            for setting in (name for name, value in objects.items() if value):
                yield f"qos.{setting}", "needs the source kubernetes"
        plugins = found.get("plugins")
        if backend == "qemu" and plugins is not None and plugins.resizer is not None:
            yield (
                "plugins.resizer",
                "must be left out where the backend is qemu, which brings guests to its own targets all the time",
            )

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Policies and windows that cannot be used, VMs that the back end cannot have, and the faults of the VMs together."""
        if not isinstance(data, dict):
            return []
        faults: list[str] = []
        plugins = data.get("plugins")
        has_plugins = isinstance(plugins, dict) and plugins.get("directory") is not None
        registry = policies.standard(has_plugins=has_plugins)
        if "policies" in data:
            faults += policies.faults_of(data["policies"], registry)
        faults += annotations.faults_of_vms(data, registry)
        if "windows" in data:
            faults += windows.faults_of(data["windows"])
        faults += guest_faults(data)
        return faults + super().cross_faults(data)

    def fixed(self) -> Self:
        qos = self.qos.model_copy(update={"feature_gates": {}}) if self.qos is not None else None
        return super().fixed().model_copy(update={"qos": qos})

    @property
    def schedulers(self) -> tuple[str, ...]:
        """Every scheduler that may be asked, beside those of a Service."""
        return (*((self.scheduler.url,) if self.scheduler.url else ()), *self.other_schedulers)

    @property
    def is_on_kubernetes(self) -> bool:
        return self.source == "kubernetes" or self.scheduler.service is not None

    @property
    def callback_socket(self) -> str | None:
        """The socket for the node informant; None unless that is at one, too."""
        at_socket = self.source == "kubernetes" and self.kubernetes.informant.startswith(UNIX)
        return self.kubernetes.callback_socket if at_socket else None

    def timing(self) -> Timing:
        return Timing(
            tick_s=self.periods.tick,
            metrics_s=self.periods.metrics,
            metrics_stale_s=max(15.0, 3 * self.periods.metrics),
            down_window_s=self.periods.down_window,
        )
