"""The machine of a guest: what is possible, and the arguments of QEMU."""

import itertools
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from labs.vms.machine import (
    GIB,
    MIB,
    BootFiles,
    GuestIdentity,
    GuestPaths,
    GuestWords,
    MachineSpec,
    MachineSpecError,
    addressable_bytes,
    machine_text,
    probe_arguments,
    qemu_arguments,
    shell_quoted,
)

FILES = BootFiles(Path("/i/vmlinuz"), Path("/i/initramfs"), Path("/i/root,1.ext4"))
IDENTITY = GuestIdentity("127.16.0.1", uuid.UUID(int=7))


def arguments(spec: MachineSpec, words: GuestWords | None = None, incoming: Path | None = None) -> list[str]:
    return qemu_arguments(spec, words or GuestWords(), FILES, GuestPaths(Path("/g")), IDENTITY, incoming)


def values(of: Sequence[str], option: str) -> list[str]:
    """The word after each occurrence of an option."""
    return [after for before, after in itertools.pairwise(of) if before == option]


def test_a_machine_without_wishes_is_the_usual_one() -> None:
    told = arguments(MachineSpec())
    assert values(told, "-machine") == ["q35"]
    assert values(told, "-accel")[0].startswith("tcg,thread=multi,")
    assert values(told, "-smp") == ["cpus=1,maxcpus=4"]
    assert values(told, "-m") == ["size=512M,slots=8,maxmem=4096M"]
    assert values(told, "-uuid") == [str(uuid.UUID(int=7))]
    assert values(told, "-netdev") == [
        "user,id=net0,hostfwd=tcp:127.16.0.1:10301-:10301,hostfwd=tcp:127.16.0.1:10400-:10400"
    ]


def test_a_device_of_changing_size_has_the_ids_that_the_agent_looks_for() -> None:
    told = arguments(MachineSpec(provider="virtio-mem", slots=4))
    assert values(told, "-object") == ["memory-backend-ram,id=vmem0-backend,size=512M"]
    assert "virtio-mem-pci,id=vmem0,memdev=vmem0-backend,requested-size=0" in values(told, "-device")
    assert values(arguments(MachineSpec()), "-object") == []


def test_the_root_is_shared_and_nobody_writes_to_it() -> None:
    (drive,) = values(arguments(MachineSpec()), "-drive")
    assert "readonly=on" in drive
    assert drive.endswith("file=/i/root,,1.ext4")  # a comma would end the value


def test_words_reach_the_kernel_and_the_shell_has_a_port_of_its_own() -> None:
    plain, told = arguments(MachineSpec()), arguments(MachineSpec(), GuestWords(True, True, True))
    assert "parley." not in values(plain, "-append")[0]
    assert values(told, "-append")[0].endswith("parley.workload=1 parley.shell=1 parley.quick=1")
    assert len(values(plain, "-serial")) == 1
    assert values(told, "-serial") == ["chardev:serial0", "chardev:serial1"]
    assert "socket,id=serial1,path=/g/shell.sock,server=on,wait=off" in values(told, "-chardev")


def test_a_secret_comes_by_a_file_that_only_such_a_guest_is_shown() -> None:
    assert values(arguments(MachineSpec()), "-fw_cfg") == []
    told = values(arguments(MachineSpec(), GuestWords(secret=True)), "-fw_cfg")
    assert told == ["name=opt/parley/secret,file=/g/secret"]


def test_agent_and_starter_have_a_monitor_each() -> None:
    assert values(arguments(MachineSpec()), "-mon") == [
        "chardev=qmp,mode=control",
        "chardev=control,mode=control",
    ]


def test_every_fault_is_named_with_its_value() -> None:
    with pytest.raises(MachineSpecError) as caught:
        MachineSpec(
            vcpus=0, max_vcpus=256, memory_bytes=100 * MIB, slots=-1, slot_bytes=100 * MIB, max_memory_bytes=1
        )
    faults = str(caught.value).split("; ")
    assert [each.split(": ")[0] for each in faults] == [
        *("vcpus", "max_vcpus", "memory_bytes", "slots", "slot_bytes", "max_memory_bytes")
    ]
    assert f"memory_bytes: {100 * MIB}: must be a multiple of 128 MiB" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"max_vcpus": 0}, "max_vcpus: 0: must be vcpus (1) to 255"),
        ({"memory_bytes": 4 * GIB}, "max_memory_bytes"),
        ({"memory_bytes": 128 * MIB}, "256 MiB at least"),
        ({"provider": "balloon"}, "provider: 'balloon': must be one of dimm, virtio-mem"),
        ({"provider": "virtio-mem", "slots": 0}, "slots: 0: virtio-mem needs at least one"),
        ({"accel": "hvf"}, "accel: 'hvf': must be one of tcg, kvm"),
    ],
)
def test_what_is_impossible_is_refused(change: dict[str, object], fault: str) -> None:
    with pytest.raises(MachineSpecError) as caught:
        replace(MachineSpec(), **change)  # type: ignore[arg-type]  # wrong types among them, on purpose
    assert fault in str(caught.value)


def test_a_saved_state_belongs_to_the_machine_and_the_words_alone() -> None:
    one = machine_text(MachineSpec(), GuestWords())
    assert one == machine_text(MachineSpec(), GuestWords())
    others = [
        machine_text(MachineSpec(memory_bytes=640 * MIB), GuestWords()),
        machine_text(MachineSpec(max_vcpus=2), GuestWords()),
        machine_text(MachineSpec(provider="virtio-mem"), GuestWords()),
        machine_text(MachineSpec(), GuestWords(shell=True)),
        machine_text(MachineSpec(), GuestWords(quick=True)),
        machine_text(MachineSpec(), GuestWords(secret=True)),
    ]
    assert len({one, *others}) == 7


def test_a_state_is_read_whatever_its_path_holds() -> None:
    path = Path("/c/it's $HOME/a state")
    assert shlex.split(shell_quoted(path)) == [str(path)]
    (incoming,) = values(arguments(MachineSpec(), incoming=path), "-incoming")
    assert shlex.split(incoming.removeprefix("exec:")) == ["cat", str(path)]


def test_a_probe_has_no_root_and_ends_by_itself() -> None:
    told = probe_arguments("kvm", FILES)
    assert values(told, "-accel") == ["kvm"]
    assert values(told, "-append")[0].endswith("parley.probe=1")
    assert values(told, "-drive") == []


@pytest.mark.parametrize(("memory", "slots", "addressable"), [(512, 8, 4), (8192, 0, 8), (4096, 3, 5)])
def test_a_machine_can_address_all_that_may_be_plugged(memory: int, slots: int, addressable: int) -> None:
    found = addressable_bytes(memory * MIB, slots)
    assert found == addressable << 30
    assert (
        MachineSpec(memory_bytes=memory * MIB, slots=slots, max_memory_bytes=found).max_memory_bytes == found
    )
