"""`parley demo --cluster`, run as a user runs it, and the checks of its result, which hold under any load."""

import json
from pathlib import Path

from tests.support.processes import running


def run_demo(cluster: str, directory: Path, *, vms: int, seconds: int) -> None:
    """Run the demo to its end. Every pod was permitted something, some were resized, the node was never overcommitted, each restart
    of a container has its end in the summary, OOM kills among them, and the control groups of all pods are as their sizes."""
    directory.mkdir()
    where = ("--cluster", cluster, "--directory", str(directory / "demo"))
    how = ("--vms", str(vms), "--seconds", str(seconds), "--output", "json")
    with running("parley", "demo", *where, *how, output=directory / "output") as demo:
        code = demo.process.wait(seconds + 60)
    assert code == 0, demo.text()
    result = json.loads(demo.text().splitlines()[-1])
    (node,) = result["nodes"].values()
    assert (node["overcommits"], node["evidence"]) == (0, "whole")
    assert len(result["vms"]) == vms
    assert all(vm["permits"] >= 1 for vm in result["vms"].values())
    assert sum(vm["resizes"] for vm in result["vms"].values()) >= 1
    for name, vm in result["vms"].items():
        assert vm["restarts"] <= sum(vm["ends"].values()), name
    assert result["mismatches"] == {}
    assert result["restarts"] == {}
