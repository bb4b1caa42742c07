"""The machine of a guest as a value, and the command line of QEMU that makes it. Nothing here does I/O."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Accelerator = Literal["tcg", "kvm"]
MemoryProvider = Literal["dimm", "virtio-mem"]

MIB: Final = 1 << 20
GIB: Final = 1 << 30
MEMORY_BLOCK_BYTES: Final = 128 * MIB
"""The guest's kernel takes up plugged memory in blocks of this size, and ignores memory that is no multiple of it."""
LEAST_MEMORY_BYTES: Final = 2 * MEMORY_BLOCK_BYTES
PLAIN_MAX_MEMORY_BYTES: Final = 4 * GIB
MOST_VCPUS: Final = 255
MOST_SLOTS: Final = 256
INFORMANT_PORT: Final = 10301
WORKLOAD_PORT: Final = 10400
VIRTIO_MEM_ID: Final = "vmem0"
VIRTIO_MEM_BACKEND_ID: Final = f"{VIRTIO_MEM_ID}-backend"
FIRMWARE_NAME: Final = "opt/parley/secret"
"""In QEMU's firmware configuration; names below `opt/` are for users."""
PROBE_WORD: Final = "parley.probe=1"
"""The kernel word that has the initramfs say `PROBE_LINE` and end the guest."""
PROBE_LINE: Final = "parley: the kernel runs"
_TRANSLATED_CODE_MIB: Final = 512
"""QEMU's cache of translated code; memory is taken as it is used.

It must never be nearly full: the cache is cut into 32 regions, and QEMU 7.2 ends with an assertion when a vCPU is plugged while
the last region is in use. A boot translates some 105 MiB; after that it hardly grows, because of `norandmaps`.
"""
_KERNEL_WORDS: Final = (
    "console=ttyS0 quiet panic=-1 mitigations=off swiotlb=noforce memhp_default_state=online_movable "
    "norandmaps tsc=reliable no_timer_check cryptomgr.notests nokaslr 8250.nr_uarts=2 apparmor=0 audit=0"
)
# panic=-1 with `-no-reboot`: a panic ends QEMU. swiotlb=noforce: 64 MiB of bounce buffers otherwise, for memory above 4 GiB.
# online_movable: memory that was plugged can be taken out again. norandmaps: each start of Python at random addresses would translate
# 22 MiB anew. The rest of the second line shortens a boot.


class MachineSpecError(ValueError):
    """A `MachineSpec` is not possible; the text names every fault."""


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """The machine that a guest starts with, and how far it can grow.

    `slots` times `slot_bytes` of memory can be plugged beside `memory_bytes`: as devices of `slot_bytes` each (`dimm`), or as
    one device of changing size (`virtio-mem`). `max_memory_bytes` is the end of the memory that the machine can address.

    Raises `MachineSpecError`.
    """

    vcpus: int = 1
    max_vcpus: int = 4
    memory_bytes: int = 512 * MIB
    slots: int = 8
    slot_bytes: int = MEMORY_BLOCK_BYTES
    max_memory_bytes: int = PLAIN_MAX_MEMORY_BYTES
    provider: MemoryProvider = "dimm"
    accel: Accelerator = "tcg"

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise MachineSpecError("; ".join(faults))

    @property
    def growth_bytes(self) -> int:
        """How much memory can be plugged in all."""
        return self.slots * self.slot_bytes

    def _faults(self) -> Iterator[str]:
        if not 1 <= self.vcpus <= MOST_VCPUS:
            yield f"vcpus: {self.vcpus}: must be 1 to {MOST_VCPUS}"
        if not self.vcpus <= self.max_vcpus <= MOST_VCPUS:
            yield f"max_vcpus: {self.max_vcpus}: must be vcpus ({self.vcpus}) to {MOST_VCPUS}"
        if self.memory_bytes < LEAST_MEMORY_BYTES or self.memory_bytes % MEMORY_BLOCK_BYTES:
            yield f"memory_bytes: {self.memory_bytes}: must be a multiple of 128 MiB, 256 MiB at least"
        if not 0 <= self.slots <= MOST_SLOTS:
            yield f"slots: {self.slots}: must be 0 to {MOST_SLOTS}"
        if self.slot_bytes <= 0 or self.slot_bytes % MEMORY_BLOCK_BYTES:
            yield f"slot_bytes: {self.slot_bytes}: must be a multiple of 128 MiB"
        if self.max_memory_bytes % MIB or self.max_memory_bytes < self.memory_bytes + self.growth_bytes:
            yield (
                f"max_memory_bytes: {self.max_memory_bytes}: must be a multiple of 1 MiB, and at least memory and all slots"
                f" ({self.memory_bytes + self.growth_bytes})"
            )
        if self.provider not in get_args(MemoryProvider):
            yield f"provider: {self.provider!r}: must be one of {', '.join(get_args(MemoryProvider))}"
        elif self.provider == "virtio-mem" and not self.slots:
            yield "slots: 0: virtio-mem needs at least one"
        if self.accel not in get_args(Accelerator):
            yield f"accel: {self.accel!r}: must be one of {', '.join(get_args(Accelerator))}"


def addressable_bytes(memory_bytes: int, slots: int, slot_bytes: int = MEMORY_BLOCK_BYTES) -> int:
    """A `max_memory_bytes` for so much memory and so many slots: `PLAIN_MAX_MEMORY_BYTES`, or the next whole GiB if that is too little."""
    return max(PLAIN_MAX_MEMORY_BYTES, -(-(memory_bytes + slots * slot_bytes) // GIB) * GIB)


@dataclass(frozen=True, slots=True)
class GuestWords:
    """What a guest is told at its boot, beside its image.

    `workload`: run the load generator. `shell`: a root shell on a second serial port. `quick`: the growth by a wish for more may be
    taken back after 2 s instead of 30 s, for tests and demos. `secret`: its informant and its agent have a secret, and the informant hears
    nobody else.
    """

    workload: bool = False
    shell: bool = False
    quick: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class BootFiles:
    """The files that a guest is booted from. Guests share them and write to none."""

    kernel: Path
    initramfs: Path
    root: Path


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    """The identity of one guest. `address` is the host's address that has the guest's ports; `boot` is new each time that QEMU starts."""

    address: str
    boot: uuid.UUID


@dataclass(frozen=True, slots=True)
class GuestPaths:
    """The files of one guest in its directory: sockets, and the output of it and of QEMU."""

    directory: Path

    @property
    def qmp(self) -> Path:
        """The monitor for the agent alone: QEMU serves one client of a socket."""
        return self.directory / "qmp.sock"

    @property
    def control(self) -> Path:
        """The monitor for the one who started the guest."""
        return self.directory / "control.sock"

    @property
    def shell(self) -> Path:
        """The host's side of the root shell."""
        return self.directory / "shell.sock"

    @property
    def secret(self) -> Path:
        """The secret that QEMU shows the guest, for its agent, too."""
        return self.directory / "secret"

    @property
    def serial(self) -> Path:
        """The output of the kernel, init and the informant."""
        return self.directory / "serial.log"

    @property
    def errors(self) -> Path:
        return self.directory / "qemu.log"


def qemu_arguments(
    spec: MachineSpec,
    words: GuestWords,
    files: BootFiles,
    paths: GuestPaths,
    identity: GuestIdentity,
    incoming: Path | None = None,
) -> list[str]:
    """The arguments of QEMU for one guest.

    `incoming` is a saved state to go on from, made with the same `spec`, `words` and `files`.
    """
    return [
        *_machine(spec),
        *_boot(words, files),
        *("-uuid", str(identity.boot)),
        *_network(identity.address),
        *_channels(words, paths),
        *(["-fw_cfg", f"name={FIRMWARE_NAME},file={_in_option(paths.secret)}"] if words.secret else []),
        *(["-incoming", f"exec:cat {shell_quoted(incoming)}"] if incoming else []),
    ]


def machine_text(spec: MachineSpec, words: GuestWords) -> str:
    """The inputs of a saved state besides QEMU and the image: the arguments without those that differ from guest to guest."""
    files = BootFiles(Path("kernel"), Path("initramfs"), Path("root"))
    identity = GuestIdentity("127.0.0.1", uuid.UUID(int=0))
    return "\n".join(qemu_arguments(spec, words, files, GuestPaths(Path()), identity))


def probe_arguments(accel: Accelerator, files: BootFiles) -> list[str]:
    """The arguments of a guest that only shows that its kernel runs; it says so on QEMU's standard output."""
    return [
        *_accelerated(accel),
        *("-m", "256M"),
        *("-kernel", str(files.kernel), "-initrd", str(files.initramfs)),
        *("-append", f"{_KERNEL_WORDS} {PROBE_WORD}"),
        *("-serial", "stdio"),
    ]


def _accelerated(accel: Accelerator) -> list[str]:
    how = "kvm" if accel == "kvm" else f"tcg,thread=multi,tb-size={_TRANSLATED_CODE_MIB}"
    model = "host" if accel == "kvm" else "max"
    bare = ("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
    return ["-machine", "q35", "-accel", how, "-cpu", model, *bare]


def _machine(spec: MachineSpec) -> list[str]:
    mebibytes = spec.memory_bytes // MIB
    memory = f"size={mebibytes}M"
    if spec.slots:
        memory += f",slots={spec.slots},maxmem={spec.max_memory_bytes // MIB}M"
    arguments = _accelerated(spec.accel)
    arguments += ["-smp", f"cpus={spec.vcpus},maxcpus={spec.max_vcpus}", "-m", memory]
    if spec.provider == "virtio-mem":
        backend = f"memory-backend-ram,id={VIRTIO_MEM_BACKEND_ID},size={spec.growth_bytes // MIB}M"
        device = f"virtio-mem-pci,id={VIRTIO_MEM_ID},memdev={VIRTIO_MEM_BACKEND_ID},requested-size=0"
        arguments += ["-object", backend, "-device", device]
    return arguments


def _boot(words: GuestWords, files: BootFiles) -> list[str]:
    ours = [f"parley.{name}=1" for name in ("workload", "shell", "quick") if getattr(words, name)]
    return [
        *("-kernel", str(files.kernel), "-initrd", str(files.initramfs)),
        *("-append", " ".join([_KERNEL_WORDS, *ours])),
        *("-drive", f"if=none,id=root,format=raw,readonly=on,file={_in_option(files.root)}"),
        *("-device", "virtio-blk-pci,drive=root"),
    ]


def _network(address: str) -> list[str]:
    ports = (INFORMANT_PORT, WORKLOAD_PORT)
    forwards = "".join(f",hostfwd=tcp:{address}:{port}-:{port}" for port in ports)
    return ["-netdev", f"user,id=net0{forwards}", "-device", "virtio-net-pci,netdev=net0,romfile="]


def _channels(words: GuestWords, paths: GuestPaths) -> list[str]:
    arguments = ["-chardev", f"file,id=serial0,append=on,path={_in_option(paths.serial)}"]
    arguments += ["-serial", "chardev:serial0"]
    if words.shell:
        arguments += [*_listening("serial1", paths.shell), "-serial", "chardev:serial1"]
    for name, path in (("qmp", paths.qmp), ("control", paths.control)):
        arguments += [*_listening(name, path), "-mon", f"chardev={name},mode=control"]
    return arguments


def _listening(name: str, path: Path) -> list[str]:
    return ["-chardev", f"socket,id={name},path={_in_option(path)},server=on,wait=off"]


def _in_option(path: Path) -> str:
    """A path inside an option of QEMU, in which a comma ends a value unless it is doubled."""
    return str(path).replace(",", ",,")


def shell_quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
