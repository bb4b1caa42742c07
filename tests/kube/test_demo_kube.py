"""The demo on a control plane of its own, with pods on a hollow node."""

from pathlib import Path

from labs.clusters.programs import Programs
from tests.support.kube.demo import run_demo


def test_pods_of_a_hollow_node_are_scaled(programs: Programs, tmp_path: Path) -> None:
    assert programs.path("hollow")
    run_demo("kube", tmp_path / "run", vms=3, seconds=25)
