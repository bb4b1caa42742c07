"""The fixtures of tests with a control plane and hollow nodes."""

from tests.support.kube.fixtures import (
    MakeHollowNodes,
    control_plane,
    hollow_nodes,
    objects,
    own_control_plane,
    programs,
)
from tests.support.kube.placing import scene
from tests.support.kube.schedulers import bare_nodes, parley

__all__ = [
    "MakeHollowNodes",
    "bare_nodes",
    "control_plane",
    "hollow_nodes",
    "objects",
    "own_control_plane",
    "parley",
    "programs",
    "scene",
]
