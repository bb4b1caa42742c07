"""Strategies of a real agent that raise, block or compute for ever: VMs are resized, the others work, and the end comes in time."""

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.processes import (
    agent_file,
    cluster_file,
    fetch,
    free_port,
    running,
    vms,
    write_json,
)
from tests.support.waiting import shown_blocking

STRATEGIES = Path(__file__).parent / "stand_ins/odd_strategies.py"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
ON = "Raises=true,Blocks=true,Spins=true"


def tree(root: Path) -> Path:
    """Control groups (v2) in ordinary files; the file that the strategy writes."""
    group = root / "kubepods/besteffort"
    group.mkdir(parents=True)
    for each in (root, group.parent, group):
        (each / "cgroup.controllers").write_text("cpu memory\n")
        (each / "cpu.max").write_text("max 100000\n")
    return group / "cpu.max"


def strategies(port: int) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(fetch(port, "/v1/qos"))["strategies"]}


def _begins(file: Path, text: str) -> bool:
    return file.read_text().startswith(text)


def test_no_strategy_holds_a_resize_or_the_end_up(tmp_path: Path) -> None:
    scheduler, informant, port = free_port(), free_port(), free_port()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    settings = agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant})
    quota = tree(tmp_path / "cgroup")
    content = json.loads(settings.read_text())
    content["qos"] = {"featureGates": {"Works": True}, "cgroupRoot": str(tmp_path / "cgroup")}
    content["policies"] = [{"name": "load-average", "args": {"high": 0.001, "low": 0.0005}}]
    write_json(settings, content)
    with ExitStack() as stack:
        start = stack.enter_context
        serving = ("--cluster", str(cluster), "--port", str(scheduler))
        start(running("scheduler", *serving, output=tmp_path / "scheduler.log"))
        start(
            running("informant", "--port", str(informant), "--approve-all", output=tmp_path / "informant.log")
        )
        asking = ("--config", str(settings), "--port", str(port), "--qos-extension-plugins", ON)
        agent = start(running("-c", RUN, str(STRATEGIES), *asking, output=tmp_path / "agent.log"))
        shown_blocking("the strategy's write", partial(_begins, quota, "50000"))
        shown_blocking("the strategy that fails", lambda: strategies(port)["Raises"]["restarts"])
        shown_blocking(
            "growth beside them", lambda: vms(port)["d/a"]["size"] == {"cpu": "4", "memory": "4Gi"}
        )
        found = strategies(port)
        assert "a fault of the strategy" in found["Raises"]["lastError"]
        assert {name: found[name]["state"] for name in ("Blocks", "Spins", "Works")} == dict.fromkeys(
            ("Blocks", "Spins", "Works"), "running"
        )
        assert found["Works"]["decisions"][-1]["inputs"] == {"vms": 1}
        address = ("--address", f"http://127.0.0.1:{port}")
        told = subprocess.run(
            [sys.executable, "-m", "agent", "qos", *address], check=True, capture_output=True, text=True
        )
        lines = {line.split()[0]: line for line in told.stdout.splitlines()}
        assert "held-back: beside 1 VMs" in lines["Works"]
        assert "a fault of the strategy" in lines["Raises"]
        assert lines["CPUSuppress"].split()[1] == "off"
        for is_on, written in ((False, "max 100000"), (True, "50000 100000")):
            content["qos"]["featureGates"]["Works"] = is_on
            write_json(settings, content)
            shown_blocking("the gate", partial(_begins, quota, written))
        assert agent.end() == 0
    assert quota.read_text() == "max 100000\n", "what was changed is put back"
