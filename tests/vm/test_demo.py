"""`parley demo --vms qemu` as a user runs it: real guests grow and shrink by negotiation, and nothing of it is left behind."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from labs.vms.image import VmImage
from labs.vms.starting import BOOT_S
from parley.observer import Observer, Tail, moves
from parley.program import main
from parley.scene import NODE
from parley.vm_stage import LEAST, MORE
from tests.support.processes import Program, running, vms
from tests.support.waiting import shown_blocking

GUESTS = 2


@contextmanager
def demo_of(directory: Path, *arguments: str) -> Iterator[Program]:
    """A demo whose guests run, with its files below `directory`; what it said is shown where the test fails."""
    place = ("--directory", str(directory / "d"))
    with running("parley", "demo", *arguments, *place, output=directory / "out") as demo:
        try:
            limit_s = time.monotonic() + BOOT_S
            while " after " not in demo.text():
                assert demo.process.poll() is None, "the demo has ended"
                assert time.monotonic() < limit_s, "the guests do not run"
                time.sleep(0.1)
            yield demo
        finally:
            print(demo.text())  # noqa: T201 - pytest keeps it for the report
            for log in sorted((directory / "d/logs").glob("*.log")):
                print(f"{log.name}: {log.read_text(errors='replace')[-2000:]}")  # noqa: T201 - as above


def moved(directory: Path) -> dict[str, dict[str, Any]]:
    """How the VMs of the demo in `directory` have moved so far."""
    observer = Observer({NODE: LEAST * GUESTS + MORE})
    for line in Tail(directory / "state/changes.jsonl").lines():
        observer.fold(line)
    return moves(observer.sizes)


def family(demo: Program) -> list[psutil.Process]:
    """The processes that the demo has started, with those below them."""
    return psutil.Process(demo.process.pid).children(recursive=True)


def qemus(demo: Program, vm: str) -> list[psutil.Process]:
    return [
        each
        for each in family(demo)
        if each.name().startswith("qemu") and f"/{vm}-" in " ".join(each.cmdline())
    ]


@pytest.mark.timeout(480)
def test_guests_grow_and_shrink_and_die_and_nothing_is_overcommitted(
    image: VmImage, guest_directory: Path
) -> None:
    directory = guest_directory / "d"
    with demo_of(guest_directory, "--vms", f"qemu:{GUESTS}", "--output", "json") as demo:

        def has_moved(vm: str, resource: str, way: str) -> bool:
            assert demo.process.poll() is None
            return bool(moved(directory)[f"demo/{vm}"][resource][way])

        for resource in ("cpu", "memory_gib"):
            for way in ("up", "down"):
                shown_blocking(f"{resource} {way}", partial(has_moved, "vm-0", resource, way))
        shown_blocking("the growth of the second guest", partial(has_moved, "vm-1", "cpu", "up"))
        port = int(json.loads((directory / "agent.yaml").read_text())["advertise"].rpartition(":")[2])

        def was_refused() -> bool:
            return any(vm["counts"]["refusals"].get("node-headroom") for vm in vms(port).values())

        shown_blocking("a refusal", was_refused)
        shown_blocking("a large guest", lambda: moved(directory)["demo/vm-0"]["cpu"]["last"] > 1)
        qemus(demo, "vm-0")[0].kill()
        shown_blocking("its end", lambda: "vm-0: QEMU was killed by signal 9" in demo.text())
        shown_blocking("its next life", lambda: "vm-0 runs again, as uid-vm-0-" in demo.text())

        again = re.compile(r"demo/vm-0: .*vCPUs \d/\d online.*permit \d")
        shown_blocking(
            "its next permit", lambda: again.search(demo.text().rpartition("vm-0 runs again, as")[2])
        )
        code = demo.end(signal.SIGINT)
    result: dict[str, Any] = json.loads(demo.text().splitlines()[-1])
    assert code == 0, demo.text()
    node = result["nodes"]["demo-node"]
    assert (node["overcommits"], node["evidence"]) == (0, "whole")
    assert GUESTS < node["largest_cpu"] <= node["reservable_cpu"] == GUESTS + 2
    assert result["sizes"] == moved(directory)
    first = result["sizes"]["demo/vm-0"]
    assert (first["cpu"]["least"], first["memory_gib"]["least"]) == (1, 0.5)
    assert set(result["machines"]) == {f"demo/vm-{number}" for number in range(GUESTS)}
    assert all(machine["vcpusOnline"] >= 1 for machine in result["machines"].values())
    assert result["restarts"] == {"vm-0": 1}
    # The permits of its first life count, too: it grew to more than it began with by several.
    assert result["vms"]["demo/vm-0"]["permits"] > 2
    logs = {
        path.name: path.read_text(errors="replace") for path in (guest_directory / "d/logs").glob("*.log")
    }
    assert {"vm-0-1-serial.log", "vm-0-2-serial.log", "vm-1-1-serial.log", "agent.log"} <= set(logs)
    assert not [name for name, log in logs.items() if "Traceback" in log]


@pytest.mark.timeout(300)
def test_a_demo_that_is_killed_leaves_neither_processes_nor_sockets(
    image: VmImage, guest_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(guest_directory))
    with demo_of(guest_directory, "--vms", "qemu:1") as demo:
        shown_blocking("the guest's size", lambda: "demo/vm-0: load" in demo.text())
        (vm,) = json.loads((guest_directory / "d/agent.yaml").read_text())["vms"]
        assert Path(vm["qmp"]).is_socket()
        left = family(demo)
        assert {"qemu-system-x86_64", "sh"} <= {each.name() for each in left}
        demo.end(signal.SIGKILL)
    assert psutil.wait_procs(left, timeout=30)[1] == []
    assert list(guest_directory.glob("parley-vms-*")) == []


def test_a_word_that_names_no_guests_is_refused_before_anything_is_started() -> None:
    done = CliRunner().invoke(main, ["demo", "--vms", "qemu:5"])
    assert done.exit_code == 2
    assert "'qemu:5': 1 to 4 guests are possible" in done.stderr
