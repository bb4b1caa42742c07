"""The extras stay unloaded until an adapter needs them: a simulated agent starts without them. Commands load only what they need."""

import json
import sys
from pathlib import Path

from tests.tidy.repository import output, run

# rich is none of them: structlog loads it wherever it is installed, and the demo needs it.
OPTIONAL = {
    "kubernetes_asyncio",
    "textual",
    "qemu",
    "grpc",
    "google.protobuf",
    "asyncinotify",
    "cryptography",
}
MODULES = ("agent.program", "scheduler.program", "informant.program", "parley.program")


def test_the_programs_start_without_the_optional_libraries() -> None:
    # A process of its own: other tests may have loaded anything into this one.
    lines = (
        f"import {name}; print({name!r}, *sorted({OPTIONAL!r} & sys.modules.keys()))" for name in MODULES
    )
    done = run([sys.executable, "-c", "\n".join(["import sys", *lines])])
    assert done.returncode == 0, output(done)
    assert done.stdout.split() == list(MODULES)


HEAVY = {
    *(OPTIONAL - {"kubernetes_asyncio"}),
    *("structlog", "rich", "pydantic", "prometheus_client", "psutil", "aiohttp.web"),
    *("hosting.logs", "hosting.server", "hosting.metrics", "hosting.settings"),
    *("agent", "informant", "scheduler", "parley.demo"),
}
"""These alone take longer to load than a command takes that asks a scheduler."""
CLIENTS = {"aiohttp", "msgspec", "kubernetes_asyncio", "yaml"}
NOBODY = "127.0.0.1:1"
_CALL = """
from parley import program
for name, arguments, forbidden in json.loads(sys.argv[1]):
    try:
        getattr(program, name)(arguments)
    except SystemExit as end:
        code = end.code
    print("LOADED", name, *arguments[:1], code, *sorted(set(forbidden) & sys.modules.keys()), file=sys.stderr)
"""


def test_the_commands_that_ask_load_only_what_they_need(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    named = {"context": {"cluster": "c", "user": "c"}}
    clusters = [{"name": "c", "cluster": {"server": f"http://{NOBODY}"}}]
    others = {"users": [{"name": "c", "user": {}}], "contexts": [{"name": "c", **named}]}
    kubeconfig.write_text(json.dumps({"clusters": clusters, **others, "current-context": "c"}))
    where = ["--scheduler", NOBODY, "--agent", NOBODY]
    # In one process, so those that may load less come first.
    calls: list[tuple[str, list[str], set[str]]] = [
        ("main", ["--help"], HEAVY | CLIENTS),
        ("kubectl_main", ["--help"], HEAVY | CLIENTS),
        ("main", ["nodes", *where[:2]], HEAVY | {"kubernetes_asyncio", "yaml"}),
        ("main", ["explain", "a/b", *where], HEAVY | {"kubernetes_asyncio", "yaml"}),
        ("kubectl_main", ["nodes", "--kubeconfig", str(kubeconfig)], HEAVY),
        ("kubectl_main", ["explain", "a/b", "--kubeconfig", str(kubeconfig)], HEAVY),
    ]
    told = json.dumps([(name, arguments, sorted(forbidden)) for name, arguments, forbidden in calls])
    done = run([sys.executable, "-c", f"import json, sys\n{_CALL}", told])
    assert done.returncode == 0, output(done)
    assert [line for line in done.stderr.splitlines() if line.startswith("LOADED")] == [
        "LOADED main --help 0",
        "LOADED kubectl_main --help 0",
        "LOADED main nodes 1",
        "LOADED main explain 1",
        "LOADED kubectl_main nodes 1",
        "LOADED kubectl_main explain 1",
    ]
