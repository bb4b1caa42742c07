"""A symlink in each folder that we read or write: no file of somebody else is read in place of ours, and none is overwritten.

| Folder | A link in it |
|---|---|
| state of agent, back ends, pools, informant, plugins' generations; journal; CDI files | never followed: nobody but the program makes files there |
| plugins | to a socket followed, as the kubelet does; to a folder not (`tests/unit/agent_plugins/test_watcher.py`) |
| the control groups | never followed: the kernel makes none there (also `tests/unit/agent_qos/test_executor.py`) |
| settings, cluster, configuration, inventory, tokens, certificates, kubeconfig, service account | followed: Kubernetes' volumes are made of links, and whoever writes there is trusted with everything |
| QEMU's sockets | followed: the path is one of the settings |
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.backends.change_log import FILE_NAME, ChangeLog
from agent.backends.qemu.guest_files import GuestFiles, GuestRecord
from agent.backends.simulated import SimulatedBackend
from agent.core.policies.remembered import NOTHING
from agent.core.ports import BackendError
from agent.daemon.load_files import LoadFiles, _name
from agent.node.plugins.sdk import resizer_service
from hosting import files
from hosting.cgroups.tree import CgroupTree
from hosting.settings import SettingsError
from informant.guest.approvals import Agreed, Approvals
from protocol.values import Resources
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.journal_files import JournalWriter
from scheduler.pools.service import PoolStateFile
from tests.security.decoders_of_messages import VM
from tests.unit.agent.driver import APART
from tests.unit.agent.test_load_files import HOW, Watched
from tests.unit.hosting.raw_peers import recorded
from tests.unit.scheduler_core.core_worlds import HERE

PRECIOUS = b"somebody else's\n"
SIZE = Resources(1000, 2**30)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A file of somebody else."""
    path = tmp_path / "elsewhere" / "precious"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


# ------------------------------------------------------------ written


def _replaced(folder: Path, link: Callable[[str], None]) -> None:
    link("x.new")
    files.replace(folder / "x.json", b"ours")
    assert (folder / "x.json").read_bytes() == b"ours"


def _replaced_itself(folder: Path, link: Callable[[str], None]) -> None:
    link("x.json")
    files.replace(folder / "x.json", b"ours")
    assert not (folder / "x.json").is_symlink()


def _locked(folder: Path, link: Callable[[str], None]) -> None:
    link("lock")
    with pytest.raises(OSError, match="symbolic"):
        files.locked(folder, "")


def _logged(folder: Path, link: Callable[[str], None]) -> None:
    link(FILE_NAME)
    with pytest.raises(OSError, match="symbolic"):
        ChangeLog(folder, "n")


def _journalled(folder: Path, link: Callable[[str], None]) -> None:
    link("journal-000001.jsonl")
    log, _ = recorded()
    JournalWriter(folder, Core(SchedulerConfig(HERE)), log).close()
    assert (folder / "journal-000002.jsonl").read_text()


def _agreed(folder: Path, link: Callable[[str], None]) -> None:
    link("size.new")
    link("size.json")
    (folder / "boot_id").write_text("b\n")
    approvals = Approvals(folder, folder / "boot_id")
    approvals.keep(Agreed(SIZE))
    assert approvals.load() == Agreed(SIZE)


def _guest(folder: Path, link: Callable[[str], None]) -> None:
    guests = GuestFiles(folder)
    link("qemu/d.a.new")
    guests.write(VM, GuestRecord(3))
    assert guests.read(VM) == GuestRecord(3)


@pytest.mark.parametrize(
    "write", [_replaced, _replaced_itself, _locked, _logged, _journalled, _agreed, _guest]
)
def test_a_link_in_place_of_a_file_that_is_written_overwrites_nothing(
    write: Callable[[Path, Callable[[str], None]], None], folder: Path, other: Path
) -> None:
    write(folder, lambda name: (folder / name).symlink_to(other))
    assert other.read_bytes() == PRECIOUS


def test_a_hard_link_in_place_of_a_file_that_is_written_overwrites_nothing(folder: Path, other: Path) -> None:
    os.link(other, folder / "x.new")
    files.replace(folder / "x.json", b"ours")
    assert other.read_bytes() == PRECIOUS


# ------------------------------------------------------------ read


def _pools(folder: Path, link: Callable[[str, bytes], None]) -> None:
    link("pools.json", json.dumps({"format": 1, "chain": "theirs", "pools": []}).encode())
    file = PoolStateFile(folder)
    try:
        with pytest.raises(SettingsError, match="cannot be read"):
            file.load()
    finally:
        file.close()


def _load(folder: Path, link: Callable[[str, bytes], None]) -> None:
    link(_name(APART), Watched().saved())
    log, lines = recorded()
    assert LoadFiles(folder, log).read(APART, HOW) == NOTHING
    assert [line["event"] for line in lines] == ["what was known of the load is ignored"]


def _record(folder: Path, link: Callable[[str, bytes], None]) -> None:
    guests = GuestFiles(folder)
    link("qemu/d.a.json", b'{"generation":7}')
    with pytest.raises(BackendError, match="cannot be read"):
        guests.read(VM)


def _simulated(folder: Path, link: Callable[[str, bytes], None]) -> None:
    (folder / "vms").mkdir()
    link("vms/d.a.json", b"{}")
    with ChangeLog(folder, "n") as log, pytest.raises(BackendError, match="cannot be read"):
        SimulatedBackend(folder, log)._read(VM)


def _kept_size(folder: Path, link: Callable[[str, bytes], None]) -> None:
    (folder / "boot_id").write_text("b\n")
    link("size.json", json.dumps({"vcpuMilli": 1000, "memoryBytes": 2**30, "bootId": "b"}).encode())
    assert Approvals(folder, folder / "boot_id").load() is None


def _generations(folder: Path, link: Callable[[str, bytes], None]) -> None:
    link("g.json", b'{"u": 5}')
    with pytest.raises(OSError, match="symbolic"):
        resizer_service._read(folder / "g.json")


@pytest.mark.parametrize("read", [_pools, _load, _record, _simulated, _kept_size, _generations])
def test_a_link_in_place_of_a_kept_file_is_not_read(
    read: Callable[[Path, Callable[[str, bytes], None]], None], folder: Path, other: Path
) -> None:
    def link(name: str, content: bytes) -> None:
        other.write_bytes(content)  # it could be read
        (folder / name).symlink_to(other)

    read(folder, link)


def test_what_is_no_file_stops_nobody_who_reads(folder: Path) -> None:
    """Opening a pipe would wait for a writer without end."""
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        files.kept(folder / "pipe")


UID = "00000000-0000-4000-8000-00000000000a"


@pytest.mark.parametrize("place", ["kubepods", "kubepods/burstable", f"kubepods/burstable/pod{UID}"])
def test_a_link_in_the_tree_of_control_groups_leads_to_no_pod(
    place: str, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    (there / f"kubepods/burstable/pod{UID}").mkdir(parents=True)
    (there / f"kubepods/burstable/pod{UID}/memory.current").write_text("4096\n")
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).symlink_to(there / place)
    tree = CgroupTree(folder)
    assert (tree.find(UID), dict(tree.pods())) == (None, {})
