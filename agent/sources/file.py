"""VMs that are listed in the agent's settings file (`vms`). The file is read again whenever it changes.

A new file with faults is reported with all of them, and the VMs of the old one stay in force.
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from pydantic import AfterValidator, Field

from agent.core.model import Vm, VmKind
from agent.core.ports import VmChange, VmDescription, VmSourceError
from agent.sources.described import changes_between
from hosting.addresses import MAX_SOCKET_BYTES, is_url
from hosting.amounts import Memory, PositiveResources, Resources, bounds_fault
from hosting.logs import Logger
from hosting.settings import Name, Settings, SettingsError, listed
from hosting.watched_file import FileUnreachableError, WatchedFile
from protocol.values import Bounds, ComputeUnit
from protocol.wire import PodName

CHECK_S: Final = 2.0
"""How often the file is looked at."""


def _informant_url(value: str) -> str:
    if not is_url(value, ("http",)):
        rule = "must be a URL such as http://127.0.0.1:10301, its port from 1 to 65535"
        raise ValueError(f"{rule} (informants speak no https)")
    return value


def _socket(value: str) -> str:
    if not value.startswith("/") or len(value.encode()) > MAX_SOCKET_BYTES:
        raise ValueError(f"must be the absolute path of a socket, of at most {MAX_SOCKET_BYTES} bytes")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("must be the absolute path of a file")
    return value


QmpSocket = Annotated[str, AfterValidator(_socket)]
InformantUrl = Annotated[str, Field(max_length=512), AfterValidator(_informant_url)]


class VmSettings(Settings):
    """A VM on this node: its pod, bounds and informant. `initial` is the size that a simulated VM is made with, `qmp` the socket of a
    QEMU guest's QMP, which is the agent's alone."""

    namespace: Name
    name: Name
    uid: Annotated[str, Field(min_length=1, max_length=64)]
    informant: InformantUrl
    min: PositiveResources
    max: Resources
    compute_unit: PositiveResources
    slot_size: Annotated[int, Memory, Field(gt=0)] | None = None
    initial: PositiveResources | None = None
    qmp: QmpSocket | None = None
    secret_file: Annotated[str, Field(max_length=4096), AfterValidator(_absolute)] | None = None
    """The file of the secret that this VM's informant has, too: then both sign what they ask of each other, and the agent refuses all
    other calls in this VM's name. 64 hexadecimal digits, and closed to other users."""
    tied: bool | None = None
    """Whether the VM has one number of units for CPU and memory; by default as the settings' own `tied` says."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Per VM: `parley.dev/config` with policies, windows and `tied`, `parley.dev/unit`, `parley.dev/bounds`, `parley.dev/metrics-plugin`,
    `parley.dev/priority`, `parley.dev/yield`."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        return bounds_fault(found.get("min"), found.get("max"))

    def spec(self) -> VmDescription:
        vm = Vm(
            PodName(self.name, self.namespace),
            self.uid,
            Bounds(self.min, self.max),
            ComputeUnit(self.compute_unit),
            self.slot_bytes,
            VmKind.SIMULATED if self.qmp is None else VmKind.QEMU,
        )
        qmp = "" if self.qmp is None else self.qmp
        return VmDescription(
            vm,
            self.informant,
            self.annotations,
            self.initial,
            self.tied,
            qmp,
            secret_file=self.secret_file or "",
        )

    @property
    def slot_bytes(self) -> int:
        return self.slot_size or self.compute_unit.memory_bytes


class VmList(Settings):
    """A settings file that lists VMs. Two of them must have neither one name nor one secret: each could speak for the other."""

    vms: list[VmSettings] = Field(default_factory=list)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        faults, seen, secrets = [], set(), set()
        for index, entry in enumerate(listed(data, "vms")):
            if isinstance(entry, dict):
                name = (str(entry.get("namespace")), str(entry.get("name")))
                if name in seen:
                    faults.append(f"vms[{index}].name: {'/'.join(name)!r} is used more than once")
                seen.add(name)
                if (secret := entry.get("secretFile")) is not None:
                    if str(secret) in secrets:
                        faults.append(f"vms[{index}].secretFile: {secret!r} is used more than once")
                    secrets.add(str(secret))
        return faults

    def fixed(self) -> Self:
        return self.model_copy(update={"vms": []})


M = TypeVar("M", bound=VmList)


class FileSource(Generic[M]):
    """The VMs of the file at `path`. `first` is the content of the file when the agent started; the first call returns that.

    Other settings of the file hold from the next start on: the log says so if they change.
    """

    def __init__(self, path: Path, first: M, log: Logger) -> None:
        self._file = WatchedFile(path, type(first), lambda read: read)
        self._first = first
        self._log = log
        self._told: dict[str, VmDescription] | None = None
        self._is_faulty = False

    async def changes(self) -> tuple[VmChange, ...]:
        if self._told is None:
            return self._news(self._first)
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                read = await self._file.refresh()
            except (SettingsError, FileUnreachableError) as error:
                self._is_faulty = True
                raise VmSourceError(str(error)) from None
            was_faulty, self._is_faulty = self._is_faulty, False
            if read is not None and read.fixed() != self._first.fixed():
                self._log.warning(
                    "of the settings file, only VMs and feature gates are taken up without a restart"
                )
            news = self._news(read) if read is not None else ()
            if news or was_faulty:
                return news

    def _news(self, read: M) -> tuple[VmChange, ...]:
        """The changes by `read`, told from now on. Nothing is awaited between this and the return."""
        before, now = self._told or {}, {spec.vm.name: spec for spec in (entry.spec() for entry in read.vms)}
        self._told = now
        return tuple(changes_between(before, now))
