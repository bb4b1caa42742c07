"""A guest is booted, restored, ended and killed; and nothing of it stays."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hosting import qmp
from hosting.client import Answered, HttpClient
from labs.vms import entries
from labs.vms.image import VmImage
from labs.vms.machine import MIB, GuestWords, MachineSpec
from labs.vms.probe import ProbeError, prove
from labs.vms.processes import identity_of
from labs.vms.running import GuestError, GuestSetup, RunningGuest
from labs.vms.saved import SavedStates, state_key
from labs.vms.starting import qemu_version, start
from tests.support import guardian
from tests.support.vms import TEST_WORDS, Guests, guarded_directory, shell_of
from tests.support.waiting import shown, shown_blocking
from tests.tidy.repository import ROOT

BOOT_S = 240
CHANGING = MachineSpec(provider="virtio-mem")
"""Two tests have it, so that one saved state serves both."""


@pytest.mark.timeout(2 * BOOT_S)
async def test_a_state_that_is_of_no_use_is_made_anew(image: VmImage, guest_directory: Path) -> None:
    """And so a guest boots, is saved, goes on, and the next one goes on from there."""
    states, told = SavedStates(), list[str]()
    key = state_key(await qemu_version(), image.digest, MachineSpec(), TEST_WORDS)
    with states.lock(key):
        states.unfinished(key).write_bytes(b"no state")
        states.keep(key)
    booted = await start(
        GuestSetup(MachineSpec(), image, guest_directory / "g1", TEST_WORDS), say=told.append
    )
    try:
        assert [each.partition(" ")[0] for each in told] == ["the", "booting"], told
        assert "of no use" in told[0]
        await _as_it_should_be(booted)
        again = await start(
            GuestSetup(MachineSpec(), image, guest_directory / "g2", TEST_WORDS), say=told.append
        )
        try:
            assert len(told) == 2, told
            assert again.address != booted.address
            await _as_it_should_be(again)
        finally:
            await again.stop()
    finally:
        await booted.stop()


async def _as_it_should_be(guest: RunningGuest) -> None:
    """The root, the control groups and the processes are those that everything else builds on."""
    async with shell_of(guest) as shell:
        root = await shell.run("grep ' / ' /proc/mounts")
        assert root.output.startswith("/dev/vda / ext4 ro,")
        informant = int((await shell.run("cat /sys/fs/cgroup/informant/cgroup.procs")).output)
        group = await shell.run(f"cat /proc/{informant}/cgroup /proc/{informant}/oom_score_adj")
        assert group.output.split() == ["0::/informant", "-1000"]
        assert (await shell.run("cat /sys/fs/cgroup/cgroup.subtree_control")).output.split() == [
            *("cpu", "io", "memory", "pids")
        ]
        assert (await shell.run("cat /sys/fs/cgroup/workload/cgroup.procs")).output == ""
        assert (await shell.run("cat /proc/self/oom_score_adj")).output == "0\n"
        assert (await shell.run("cat /proc/1/oom_score_adj")).output == "-1000\n"
        assert int((await shell.run("free -m | awk '/Mem/{print $2}'")).output) > 400
        assert (await shell.run("exit 7", check=False)).code == 7


async def test_a_guest_whose_qemu_is_killed_is_gone_at_once(guests: Guests) -> None:
    guest = await guests()
    guest.kill()
    await guest.wait_gone()
    assert guest.process.exit_code == -signal.SIGKILL
    await guest.control.closed()
    with pytest.raises(qmp.QmpClosedError):
        await guest.control.execute("query-status")
    with pytest.raises(GuestError, match="QEMU has ended by signal 9"):
        await guest.until_ready(5)
    await guest.stop()
    await guest.stop()  # twice is as good as once


async def test_a_vcpu_and_memory_of_changing_size_arrive_in_the_guest(guests: Guests) -> None:
    """DIMMs are what the negotiations of the other files are about."""
    guest = await guests(GuestWords(), CHANGING)
    free = next(
        each for each in await guest.control.execute("query-hotpluggable-cpus") if "qom-path" not in each
    )
    await guest.control.execute("device_add", {"driver": free["type"], "id": "cpu1", **free["props"]})
    resize = {"path": "/machine/peripheral/vmem0", "property": "requested-size", "value": 256 * MIB}
    await guest.control.execute("qom-set", resize)
    async with HttpClient() as client:

        async def grown() -> bool:
            outcome = await client.call("GET", f"{guest.informant_url}/machine", deadline_s=5)
            assert isinstance(outcome, Answered), outcome
            machine = json.loads(outcome.body)
            return (machine["presentCPUs"], machine["memoryOnlineBytes"]) == (2, 768 * MIB)

        assert await shown("a vCPU and memory", grown, ())


def test_a_killed_runner_leaves_nothing(image: VmImage) -> None:
    """Neither guest nor agent nor scheduler, nor their files."""
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.vm.runner", image.digest], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    try:
        (line,) = itertools.islice((each for each in runner.stdout if each.startswith("runs ")), 1)
        _, directory, *pids = line.split()
        assert (Path(directory) / "db" / "qmp.sock").is_socket()
        assert len(pids) == 3
        assert all(identity_of(int(pid)) is not None for pid in pids)
    finally:
        runner.kill()
        runner.wait(60)
        runner.stdout.close()
    # A process that is being killed has lost its mark already, and may still be there for a moment.
    assert shown_blocking(
        "nothing", lambda: _is_gone(directory) and not any(identity_of(int(pid)) for pid in pids)
    )


def test_whatever_a_runner_has_left_is_ended_and_named() -> None:
    """A process that dies with its runner anyhow needs no guardian; a program that a test starts does."""
    with (
        pytest.raises(AssertionError, match="processes were left behind") as caught,
        guarded_directory() as directory,
    ):
        left = subprocess.Popen(["/bin/sh", "-c", "read forever < /dev/zero"], start_new_session=True)
    assert left.wait(60) == -signal.SIGKILL
    assert f"{left.pid} /bin/sh -c read forever" in str(caught.value)
    assert not directory.exists()


def _is_gone(directory: str) -> bool:
    return not Path(directory).exists() and guardian.marked(directory) == []


def test_the_commands_boot_list_and_stop_guests(image: VmImage, guest_directory: Path) -> None:
    first = _parley("boot", "one", "--provider", "virtio-mem", directory=guest_directory)
    assert "backend: qemu" in first.stdout
    (row,) = json.loads(_parley("list", "-o", "json", directory=guest_directory).stdout)["vms"]
    assert (row["vcpusPlugged"], row["memory"]) == (1, "512Mi")
    assert row["state"] == "running"
    again = _parley("boot", "one", directory=guest_directory, code=1)
    assert f"one runs already: process {row['pid']}" in again.stderr
    os.kill(row["pid"], signal.SIGKILL)
    listed = shown_blocking("gone", lambda: _if_gone(_parley("list", directory=guest_directory).stdout))
    assert listed.splitlines()[0].split() == ["NAME", "PID", "ADDRESS", "VCPUS", "MEMORY", "STATE"]
    _parley(
        "boot", "one", "--provider", "virtio-mem", directory=guest_directory
    )  # what the dead one has left is in nobody's way
    assert _parley("stop", "--all", directory=guest_directory).stdout == "one: stopped\n"
    assert "no guests" in _parley("list", directory=guest_directory).stdout
    assert list(guest_directory.iterdir()) == []


def test_a_guest_is_known_although_the_command_that_boots_it_was_killed(
    image: VmImage, guest_directory: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "parley",
        "vm",
        "boot",
        "one",
        "--cold",
        "--directory",
        str(guest_directory),
    ]
    with subprocess.Popen(command, cwd=ROOT) as booting:
        entry = shown_blocking("a process", lambda: entries.read(guest_directory / "one"))
        booting.kill()
    assert identity_of(entry.process.pid) == entry.process
    again = _parley("boot", "one", directory=guest_directory, code=1)
    assert "one runs already" in again.stderr
    assert _parley("stop", "one", directory=guest_directory).stdout == "one: stopped\n"
    assert identity_of(entry.process.pid) is None


def _if_gone(listed: str) -> str | None:
    return listed if listed.rsplit(maxsplit=1)[-1] == "gone" else None


def _parley(*words: str, directory: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "parley", "vm", *words, "--directory", str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=BOOT_S,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


async def test_an_accelerator_is_believed_when_a_kernel_has_begun_under_it(image: VmImage) -> None:
    await prove("tcg", image, deadline_s=60)
    with pytest.raises(ProbeError, match=r"its kernel had not begun after 0.01 s"):
        await prove("tcg", image, deadline_s=0.01)
