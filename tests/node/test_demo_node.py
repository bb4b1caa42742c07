"""The demo on a control plane of its own, with pods on a real node."""

from pathlib import Path

from labs.clusters.node.real_node import RealNode
from tests.support.kube.demo import run_demo


def test_pods_of_a_real_node_are_scaled(real_node: RealNode, tmp_path: Path) -> None:
    """Beside the node of the other tests: two nodes on one machine do not meet."""
    assert real_node.name
    run_demo("node", tmp_path / "run", vms=2, seconds=35)
