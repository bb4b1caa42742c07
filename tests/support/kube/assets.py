"""The programs of Kubernetes for the tests of this checkout; without them the tests are skipped."""

import functools
import importlib.util
from pathlib import Path
from typing import Final

import pytest

from labs.clusters.programs import BUILT, INSTALLED, ClusterError, Programs, folder_of_programs

BUILDER: Final = Path(__file__).parents[2] / "kube" / "assets" / "build.py"


@functools.cache
def _file_of(name: str) -> Path:
    """One of our own programs in Go, built from this checkout's source."""
    specification = importlib.util.spec_from_file_location("kube_assets_build", BUILDER)
    assert specification is not None
    assert specification.loader is not None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    file: Path = builder.file_of(name, folder_of_programs())
    return file


@functools.cache
def programs() -> Programs:
    """The programs, with the hollow nodes built from this checkout's source. Skips the test if any is missing."""
    found = Programs(folder_of_programs(), _file_of("hollow"))
    try:
        found.check((*BUILT, *INSTALLED))
    except ClusterError as error:
        pytest.skip(f"{error}; then run this again")
    return found


def example_plugin() -> Path:
    """The example plugin of the kubelet's own tree. Skips the test if the program is missing."""
    file = _file_of("exampleplugin")
    if not file.exists():
        pytest.skip(f"{file} is missing: `make kube-assets` builds it, in seconds; then run this again")
    return file
