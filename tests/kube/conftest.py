"""The fixtures of tests with a control plane and hollow nodes."""

from tests.support.kube.fixtures import (
    MakeHollowNodes,
    control_plane,
    hollow_nodes,
    objects,
    own_control_plane,
    programs,
)

__all__ = ["MakeHollowNodes", "control_plane", "hollow_nodes", "objects", "own_control_plane", "programs"]
