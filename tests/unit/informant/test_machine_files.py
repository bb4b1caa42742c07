"""The guest's kernel shows CPUs and memory blocks as files, and a CPU is switched by one."""

import shutil
from pathlib import Path

import pytest

from informant.core.cpu_orders import CpuSwitch, GuestCpus
from informant.guest.machine import MachineFiles, findings
from tests.unit.informant.machine_trees import BLOCK, MachineTree


@pytest.fixture
def tree(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path, online={0, 2}).write()


def test_cpus_that_are_present_and_online_are_told(tree: MachineTree) -> None:
    (tree.root / "cpu" / "present").write_text("0-2,5,7-8\n")
    (tree.root / "cpu" / "online").write_text("0-1,8\n")
    assert MachineFiles(tree.root).cpus() == GuestCpus(frozenset({0, 1, 2, 5, 7, 8}), frozenset({0, 1, 8}))


def test_a_cpu_that_goes_between_two_looks_is_not_online(tree: MachineTree) -> None:
    (tree.root / "cpu" / "present").write_text("0\n")
    assert MachineFiles(tree.root).cpus() == GuestCpus(frozenset({0}), frozenset({0}))


@pytest.mark.parametrize("text", ["", "\n", "a\n", "0-\n", "5\n"])
def test_a_kernel_that_shows_no_cpu_is_a_value_error(tree: MachineTree, text: str) -> None:
    (tree.root / "cpu" / "online").write_text(text)
    with pytest.raises(ValueError, match=r".+"):
        MachineFiles(tree.root).cpus()


def test_blocks_that_are_online_are_added_up(tree: MachineTree) -> None:
    tree.blocks = {0: "online", 1: "offline", 2: "going-offline", 3: "online", 32: "online"}
    tree.write()
    (tree.root / "memory" / "power").mkdir()
    memory = MachineFiles(tree.root).memory()
    assert (memory.block_bytes, memory.online_bytes) == (BLOCK, 3 * BLOCK)


def test_a_block_that_goes_while_it_is_read_is_left_out(tree: MachineTree) -> None:
    (tree.root / "memory" / "memory3" / "state").unlink()
    assert MachineFiles(tree.root).memory().online_bytes == 3 * BLOCK


def test_a_kernel_without_memory_blocks_is_an_os_error(tree: MachineTree) -> None:
    shutil.rmtree(tree.root / "memory")
    with pytest.raises(OSError, match="block_size_bytes"):
        MachineFiles(tree.root).memory()


def test_a_cpu_is_switched_by_its_file(tree: MachineTree) -> None:
    machine = MachineFiles(tree.root)
    for is_on in (True, False):
        machine.switch(CpuSwitch(1, is_on))
        assert (tree.root / "cpu" / "cpu1" / "online").read_text()[0] == str(int(is_on))


def test_a_cpu_that_has_gone_cannot_be_switched(tree: MachineTree) -> None:
    with pytest.raises(FileNotFoundError):
        MachineFiles(tree.root).switch(CpuSwitch(4, is_on=True))


def test_nothing_is_lacking_where_the_kernel_switches_cpus(tree: MachineTree) -> None:
    assert MachineFiles(tree.root).lacks() == ""
    (tree.root / "cpu" / "cpu3" / "online").unlink()
    assert MachineFiles(tree.root).lacks() == "", "its switch comes a moment after the CPU"


def test_a_switch_that_may_not_be_written_is_lacking(
    tree: MachineTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: path.parent.name != "cpu2")
    assert MachineFiles(tree.root).lacks() == f"{tree.root}/cpu/cpu2/online may not be written"


def test_a_kernel_that_switches_no_cpus_is_lacking(tree: MachineTree) -> None:
    (tree.root / "cpu" / "hotplug").rmdir()
    told = f"{tree.root}/cpu/hotplug is not there: the kernel switches no CPUs"
    assert MachineFiles(tree.root).lacks() == told


def test_a_finding_tells_of_the_machine(tree: MachineTree) -> None:
    (found,) = findings(MachineFiles(tree.root))
    told = "2 of 4 CPUs online; 4 memory blocks of 128 MiB"
    assert (found.name, found.is_had, found.told) == ("machine", True, told)
    (tree.root / "cpu" / "hotplug").rmdir()
    (found,) = findings(MachineFiles(tree.root))
    assert not found.is_had
    assert found.told.startswith(f"{told}; {tree.root}/cpu/hotplug is not there")
    shutil.rmtree(tree.root / "memory")
    (found,) = findings(MachineFiles(tree.root))
    assert not found.is_had
    assert "block_size_bytes" in found.told


def test_this_machine_can_be_read() -> None:
    cpus = MachineFiles().cpus()
    assert 0 < len(cpus.online) <= len(cpus.present)
