"""The module that authors of node plugins import has every name of the stub, and loads nothing before it is used."""

import sys

import pytest

from parley import node_plugins
from tests.tidy.repository import output, run


@pytest.mark.parametrize("name", dir(node_plugins))
def test_every_name_is_there(name: str) -> None:
    found = getattr(node_plugins, name)
    assert getattr(found, "__name__", name) == name  # constants know no name of theirs


def test_grpc_is_loaded_with_the_first_name_that_needs_it() -> None:
    lines = (
        "import sys",
        "from parley.node_plugins import Amount, MetricsSourcePlugin",
        "assert 'grpc' not in sys.modules",
        "from parley.node_plugins import serve",
        "assert 'grpc' in sys.modules",
    )
    done = run([sys.executable, "-c", "\n".join(lines)])
    assert done.returncode == 0, output(done)
