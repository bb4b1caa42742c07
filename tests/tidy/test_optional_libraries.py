"""The extras stay unloaded until an adapter needs them: a simulated agent starts without them."""

import sys

from tests.tidy.repository import output, run

# rich is none of them: structlog loads it wherever it is installed, and the demo needs it.
OPTIONAL = {"kubernetes_asyncio", "textual", "qemu", "grpc", "google.protobuf", "asyncinotify"}
MODULES = ("agent.program", "scheduler.program", "informant.program", "parley.program")


def test_the_programs_start_without_the_optional_libraries() -> None:
    # A process of its own: other tests may have loaded anything into this one.
    lines = (
        f"import {name}; print({name!r}, *sorted({OPTIONAL!r} & sys.modules.keys()))" for name in MODULES
    )
    done = run([sys.executable, "-c", "\n".join(["import sys", *lines])])
    assert done.returncode == 0, output(done)
    assert done.stdout.split() == list(MODULES)
