"""The extras stay unloaded until an adapter needs them: a simulated agent starts without them."""

import sys

import pytest

from tests.tidy.house import output, run

# rich is none of them: structlog loads it wherever it is installed, and the demo needs it.
OPTIONAL = {"kubernetes_asyncio", "textual", "qemu"}


@pytest.mark.parametrize("module", ["agent.cli", "scheduler.cli", "informant.cli", "parley.cli"])
def test_a_program_starts_without_the_optional_libraries(module: str) -> None:
    # A process of its own: other tests may have loaded anything into this one.
    code = f"import sys, {module}; print(*sorted({OPTIONAL!r} & sys.modules.keys()))"
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, output(done)
    assert done.stdout.split() == []
