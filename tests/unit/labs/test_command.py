"""`parley vm`: command lines that are wrong, and what is printed without any guest."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hosting
from agent.daemon.settings import AgentSettings
from hosting.settings import load
from labs.vms import entries
from labs.vms.command import agents_file
from labs.vms.entries import GuestEntry
from labs.vms.image import VmImage
from labs.vms.machine import MIB, GuestWords, MachineSpec
from labs.vms.processes import ProcessIdentity
from labs.vms.running import GuestSetup, RunningGuest
from labs.vms.store import VmStore
from parley.program import main
from protocol.values import Resources


def run(*words: str, code: int = 0) -> str:
    """The output of `parley vm …`, errors and all."""
    done = CliRunner().invoke(main, ["vm", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_every_fault_of_the_machine_is_named() -> None:
    told = run("boot", "--vcpus", "5", "--memory", "100Mi", code=2)
    assert "max_vcpus: 4: must be vcpus (5) to 255" in told
    assert "memory_bytes: 104857600: must be a multiple of 128 MiB" in told


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("boot", "--memory", "much"), "'much' is no amount of memory, such as 512Mi or 6Gi"),
        (("boot", "--accel", "xen"), "'xen' is not one of 'tcg', 'kvm'"),
        (("stop",), "give the NAME of a guest, or --all"),
        (("stop", "a", "--all"), "give the NAME of a guest, or --all"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused(words: tuple[str, ...], fault: str) -> None:
    assert fault in run(*words, code=2)


def test_the_agent_takes_what_boot_prints_for_it(tmp_path: Path) -> None:
    image, words = VmImage(Path("/image"), "d"), GuestWords(secret=True)
    setup = GuestSetup(MachineSpec(vcpus=2), image, Path("/run/db-0"), words)
    nothing: Any = None
    told = agents_file(RunningGuest(setup, "127.16.0.1", nothing, nothing))
    (tmp_path / "agent.yaml").write_text(
        f"node: n1\nscheduler: http://127.0.0.1:10299/\nstateDirectory: {tmp_path}\n{told}\n"
    )
    settings = load(tmp_path / "agent.yaml", AgentSettings)
    (guest,) = settings.vms
    assert guest.min == Resources(2000, 512 * MIB)
    assert guest.max == Resources(4000, 1536 * MIB)
    assert (guest.qmp, guest.secret_file) == ("/run/db-0/qmp.sock", "/run/db-0/secret")


def test_nothing_to_list_and_nothing_to_stop(tmp_path: Path) -> None:
    assert run("list", "--directory", str(tmp_path)) == f"no guests in {tmp_path}\n"
    assert json.loads(run("list", "-o", "json", "--directory", str(tmp_path))) == {"vms": []}
    assert run("stop", "--all", "--directory", str(tmp_path)) == ""
    assert run("stop", "a", "--directory", str(tmp_path), code=1) == f"there is no guest a in {tmp_path}\n"
    assert "is no name" in run("stop", "A", "--directory", str(tmp_path), code=1)


def test_a_guest_that_has_gone_is_listed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    gone = ProcessIdentity(4_194_304, 7, "another boot")
    entries.write(tmp_path / "one", GuestEntry(gone, "127.16.0.1", MachineSpec(), GuestWords(), "d"))
    head, row = run("list", "--directory", str(tmp_path)).splitlines()
    assert head.split() == ["NAME", "PID", "ADDRESS", "VCPUS", "MEMORY", "STATE"]
    assert row.split() == ["one", "4194304", "127.16.0.1", "-", "-", "gone"]
    (listed,) = json.loads(run("list", "-o", "json", "--directory", str(tmp_path)))["vms"]
    assert (listed["state"], listed["vcpusPlugged"], listed["memory"]) == ("gone", None, None)
    assert run("stop", "--all", "--directory", str(tmp_path)) == "one: had ended by itself; removed\n"
    assert list(tmp_path.iterdir()) == []


def test_without_what_guests_need_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for words in (("build-image",), ("boot", "a", "--directory", str(tmp_path / "vms"))):
        assert "`make vm-assets` gets them" in run(*words, code=1)
    assert list((tmp_path / "vms").iterdir()) == []


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if nothing that needs it had been loaded yet.
    for name in ("labs.vms.store", "hosting.qmp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(hosting, "qmp", raising=False)
    monkeypatch.setitem(sys.modules, "qemu.qmp", None)
    told = run("list", code=1)
    assert "needs qemu.qmp, which is not installed here" in told
    assert "pip install '.[vm]'" in told


def test_all_guests_are_stopped_although_one_of_them_is_being_booted(tmp_path: Path) -> None:
    store = VmStore(tmp_path)
    (tmp_path / "b").mkdir()
    with store.booting("a") as directory:
        directory.mkdir()
        told = run("stop", "--all", "--directory", str(tmp_path), code=1)
    assert "a is being booted or stopped" in told
    assert "b: had ended by itself; removed" in told
    assert not (tmp_path / "b").exists()
