"""The fixtures of tests with a real node."""

from tests.support.kube.fixtures import control_plane, objects, programs, real_node

__all__ = ["control_plane", "objects", "programs", "real_node"]
