"""The real programs on a full node: an idle VM gives room to one that needs it, and again after a restart of the scheduler."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes.schedulers import lines
from tests.support.processes import agent_file, cluster_file, fetch, free_port, running, vms
from tests.support.waiting import shown_blocking


@contextmanager
def load(directory: Path, name: str, port: int, cpus: float) -> Iterator[None]:
    """The informant of a guest with a steady load."""
    steady = ("--workload", "step", "--low", str(cpus), "--high", str(cpus), "--memory", "256Mi", "256Mi")
    with running("informant", *steady, "--port", str(port), output=directory / name):
        yield


def codes(scheduler: int, name: str) -> set[str]:
    """The codes of the VM's decisions in a negotiation."""
    said = json.loads(fetch(scheduler, f"/v1/explain/d/{name}"))
    return {each["limits"][0]["code"] for each in said["decisions"] if each["outcome"] == "negotiation"}


def test_an_idle_vm_gives_room_and_a_new_scheduler_negotiates_as_well(tmp_path: Path) -> None:
    scheduler, agent, gives, takes = (free_port() for _ in range(4))
    cluster = cluster_file(tmp_path / "cluster.yaml", ["gives", "takes"], room=7, most=6)
    settings = agent_file(tmp_path / "agent.yaml", scheduler, {"gives": gives, "takes": takes}, most=6)
    options = ("--cluster", str(cluster), "--port", str(scheduler), "--handover", "1")

    def cpus(name: str) -> int:
        size: dict[str, Any] | None = vms(agent)[f"d/{name}"]["size"]
        return 0 if size is None else int(size["cpu"])

    with running("agent", "--config", str(settings), "--port", str(agent), output=tmp_path / "agent"):
        with running("scheduler", *options, "--first-start", output=tmp_path / "first"):
            with load(tmp_path, "busy", gives, 4.9), load(tmp_path, "idle", takes, 0.3):
                shown_blocking("it has nearly all", lambda: cpus("gives") == 6)
            with load(tmp_path, "calm", gives, 0.3), load(tmp_path, "some", takes, 2.5):
                shown_blocking("the other has what it needs", lambda: cpus("takes") == 3)
                assert cpus("gives") < 6
                shown_blocking("that it gave", lambda: "yielded" in codes(scheduler, "gives"))
                assert "waits-for-room" in codes(scheduler, "takes")
        with (
            load(tmp_path, "calm again", gives, 0.3),
            load(tmp_path, "more", takes, 4.5),
            running("scheduler", *options, output=tmp_path / "second") as second,
        ):
            shown_blocking("the other has what it needs now", lambda: cpus("takes") >= 5)
            shown_blocking("that it gave again", lambda: "yielded" in codes(scheduler, "gives"))
            assert lines(second, "decision")
