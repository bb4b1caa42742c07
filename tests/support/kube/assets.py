"""The programs of Kubernetes for the tests of this checkout; without them the tests are skipped."""

import functools
import importlib.util
from pathlib import Path
from typing import Final

import pytest

from parley.clusters.programs import BUILT, INSTALLED, ClusterError, Programs, folder_of_programs

BUILDER: Final = Path(__file__).parents[2] / "kube" / "assets" / "build.py"


@functools.cache
def programs() -> Programs:
    """The programs, with the hollow nodes built from this checkout's source. Skips the test where any is missing."""
    specification = importlib.util.spec_from_file_location("kube_assets_build", BUILDER)
    assert specification is not None
    assert specification.loader is not None
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    folder = folder_of_programs()
    found = Programs(folder, builder.hollow_of(folder))
    try:
        found.check((*BUILT, *INSTALLED))
    except ClusterError as error:
        pytest.skip(f"{error}; then run this again")
    return found
