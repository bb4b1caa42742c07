"""The demo as a user runs it: it ends by itself with a summary, and survives the death of each of its programs."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from parley import scene as scenes
from parley.children import Children
from parley.observer import Tail
from parley.program import main
from tests.support.processes import fetch, running, vms
from tests.support.waiting import shown_blocking

VMS = 4


@pytest.fixture(autouse=True)
def _log_of_this_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that runs within a test configures the log of its process, and later tests look at that."""
    monkeypatch.setattr("hosting.logs.configure", lambda *_: None)


def test_it_ends_by_itself_and_its_last_line_is_one_json_object(tmp_path: Path) -> None:
    """`--seconds` with `--output json`: lines of changes for people go to stderr, the summary to stdout."""
    place = ("--directory", str(tmp_path / "d"))
    arguments = ("demo", "--vms", "3", "--seconds", "6", "--output", "json", *place)
    with running("parley", *arguments, output=tmp_path / "out") as demo:
        code = demo.process.wait(60)
    lines = demo.text().splitlines()
    result = json.loads(lines[-1])
    assert code == 0, demo.text()
    assert set(result["vms"]) == {"demo/this-machine", "demo/memory-heavy", "demo/cpu-heavy"}
    assert all(vm["permits"] >= 2 for vm in result["vms"].values())
    node = result["nodes"]["demo-node"]
    assert (node["overcommits"], node["evidence"]) == (0, "whole")
    assert 0 < node["largest_cpu"] <= node["reservable_cpu"]
    assert result["apart"]["reserved"]["cpu"] == node["largest_cpu"]
    assert any("demo/this-machine" in line for line in lines[:-1])


def child(demo_pid: int, module: str, word: str = "") -> int:
    """The pid of the demo's child that runs `module`."""

    def look() -> int | None:
        for process in psutil.Process(demo_pid).children():
            command = process.cmdline()
            if command[2:4] == ["-m", module] and any(word in part for part in command):
                return process.pid
        return None

    return shown_blocking(f"a child that runs {module}", look)


def test_killing_each_program_leaves_the_rest_running_and_nothing_overcommitted(tmp_path: Path) -> None:
    """kill -9 of the scheduler, the agent and an informant in mid-demo; VMs keep their sizes."""
    directory = tmp_path / "d"
    arguments = ("demo", "--vms", str(VMS), "--output", "json", "--directory", str(directory))
    with running("parley", *arguments, output=tmp_path / "out") as demo:
        shown_blocking("the agent's settings", (directory / "agent.yaml").exists)
        settings = json.loads((directory / "agent.yaml").read_text())
        scheduler_port = int(re.findall(r":(\d+)/", settings["scheduler"])[0])
        pid = demo.process.pid
        agent_port = int(psutil.Process(child(pid, "agent")).cmdline()[-1])

        def all_settled() -> bool:
            page = fetch(scheduler_port, "/metrics").decode()
            return f'parley_scheduler_vms{{state="settled"}} {VMS}.0' in page

        def all_negotiated() -> bool:
            known = vms(agent_port)
            return len(known) == VMS and all(
                vm["permit"] and vm["informant"] == "active" and not vm["faults"] for vm in known.values()
            )

        shown_blocking("every VM settled", all_settled)
        shown_blocking("every VM negotiated", all_negotiated)
        assert f"live page: http://127.0.0.1:{scheduler_port}/\n" in demo.text()
        (asked,) = re.findall(r"why a VM has its size: (.+)\n", demo.text())
        told = subprocess.run(shlex.split(asked), check=False, capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr
        assert "does not answer" not in told.stdout
        assert b"<title>Parley scheduler</title>" in fetch(scheduler_port, "/")

        os.kill(child(pid, "scheduler"), signal.SIGKILL)
        shown_blocking(
            "the scheduler's death noticed", lambda: "scheduler was killed by signal 9" in demo.text()
        )
        shown_blocking("every VM settled with the new scheduler", all_settled)
        shown_blocking("every VM negotiated again", all_negotiated)

        sizes = {path.name: json.loads(path.read_text()) for path in (directory / "state/vms").glob("*.json")}
        daemon = json.loads(fetch(agent_port, "/v1/vms"))["daemon"]
        os.kill(child(pid, "agent"), signal.SIGKILL)
        assert len(sizes) == VMS
        shown_blocking("a new agent", lambda: json.loads(fetch(agent_port, "/v1/vms"))["daemon"] != daemon)
        shown_blocking("every VM negotiated by the new agent", all_negotiated)

        os.kill(child(pid, "informant", "--approve-all"), signal.SIGKILL)
        shown_blocking(
            "the informant's death noticed", lambda: "informant-this-machine was killed" in demo.text()
        )
        shown_blocking("the agent registered with the new informant", all_negotiated)
        code = demo.end(signal.SIGINT)

    text = demo.text()
    result = json.loads(text.splitlines()[-1])
    assert code == 0, text
    assert "Traceback" not in text
    assert result["nodes"]["demo-node"]["overcommits"] == 0
    assert result["restarts"] == {"scheduler": 1, "agent": 1, "informant-this-machine": 1}
    logs = {path.name: path.read_text() for path in (directory / "logs").glob("*.log")}
    assert not [name for name, log in logs.items() if "Traceback" in log]
    _assert_no_vm_moved_while_the_agent_was_dead(directory)


def _assert_no_vm_moved_while_the_agent_was_dead(directory: Path) -> None:
    """A new agent found what the old one left: the sizes after each `daemon` line are the ones before it."""
    lines = list(Tail(directory / "state/changes.jsonl").lines())
    starts = [index for index, line in enumerate(lines) if line["kind"] == "daemon"]
    assert len(starts) == 2
    known: dict[tuple[str, str], tuple[int, int]] = {}
    for line in lines[: starts[1]]:
        if line["kind"] in ("size", "target"):
            known[line["kind"], line["vm"]] = (line["cpu"], line["memory"])
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for line in lines[starts[1] + 1 :]:
        if line["kind"] in ("size", "target"):
            found.setdefault((line["kind"], line["vm"]), (line["cpu"], line["memory"]))
    for vm in {vm for _, vm in known}:
        # A resize that the old agent had sent may have ended in between: its target is the size then.
        before = {known["size", vm], known.get(("target", vm), known["size", vm])}
        assert found["size", vm] in before


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """The demo ends its children by their own pid, and waits for them. Before that nobody else gets its directory."""
    arguments = ("demo", "--vms", "2", "--quiet", "--directory", str(tmp_path / "d"))
    with running("parley", *arguments, output=tmp_path / "out") as demo:
        child(demo.process.pid, "agent")
        shown_blocking("the agent's first line", (tmp_path / "d/state/changes.jsonl").exists)
        with running("parley", *arguments, output=tmp_path / "second") as second:
            assert second.process.wait(30) == 2
        assert "another demo is running in" in second.text()
        children = psutil.Process(demo.process.pid).children()
        code = demo.end(signal.SIGINT)
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert (code, alive) == (0, [])
    assert len(gone) >= 4
    assert "never overcommitted" in demo.text()


def test_nothing_is_claimed_of_a_node_whose_change_log_was_removed_and_its_directory_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running("parley", "demo", "--vms", "1", output=tmp_path / "out") as demo:
        shown_blocking("the VM", lambda: "demo/this-machine: load" in demo.text())
        (kept,) = tmp_path.glob("parley-demo-*")
        shown_blocking("a change", (kept / "state/changes.jsonl").exists)
        (kept / "state/changes.jsonl").unlink()
        code = demo.end(signal.SIGINT)
    assert (code, "never overcommitted" in demo.text()) == (4, False), demo.text()
    assert "is not known, because the change log was removed" in demo.text()
    assert f"logs: {kept}/logs (kept)" in demo.text()
    assert (kept / "logs/agent.log").exists()


def test_a_directory_with_the_vms_of_another_demo_is_refused(tmp_path: Path) -> None:
    scenes.write_files(scenes.make(tmp_path, 12, 1, 0.0))
    done = CliRunner().invoke(main, ["demo", "--vms", "3", "--directory", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds the VMs of another demo (12 of them)" in done.output


def test_a_picture_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["demo", "--picture", str(tmp_path / "none" / "drawn.svg")])
    assert done.exit_code == 2
    assert f"there is no directory {tmp_path}/none" in done.output


def test_of_a_full_disk_it_says_so_and_not_that_nobody_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.demo.START_S", 0.1)
    monkeypatch.setattr(Children, "write_fault", lambda _: "/d/logs: No space left on device")
    arguments = ("demo", "--vms", "1", "--seconds", "1", "--quiet", "--directory", str(tmp_path / "d"))
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.stderr) == (1, "/d/logs: No space left on device\n")


@pytest.mark.parametrize("name", ["drawn.png", "drawn", "svg"])
def test_a_picture_of_another_kind_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    """A file that is named as a PNG, and holds an SVG, opens nowhere."""
    done = CliRunner().invoke(main, ["demo", "--picture", str(tmp_path / name)])
    assert done.exit_code == 2
    assert f"--picture {tmp_path}/{name}: the picture is an SVG. Give a name that ends in .svg" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_second_counts_from_the_agents_first_answer_and_a_picture_is_of_the_last_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the programs take longer than that to come up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ("demo", "--vms", "1", "--seconds", "1", "--output", "json")
    drawn = tmp_path / "drawn.svg"
    with running("parley", *arguments, "--picture", str(drawn), output=tmp_path / "out") as demo:
        assert demo.process.wait(60) == 0, demo.text()
    assert "this-machine" in drawn.read_text()
    assert "demo/this-machine" in json.loads(demo.text().splitlines()[-1])["vms"]
    assert list(tmp_path.glob("parley-demo-*")) == []


def test_an_output_that_cannot_be_written_ends_it_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for quiet in ((), ("--quiet",)):
        command = (sys.executable, "-m", "parley", "demo", "--vms", "1", "--seconds", "1", *quiet)
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
        assert done.stderr == "the output cannot be written: No space left on device\n"
        assert done.returncode == 1
        assert list(tmp_path.glob("parley-demo-*")) == []
