"""kubectl with Parley's plugin, as they are installed: programs in a directory of their own."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from tests.tidy.repository import ROOT

CALL_S: Final = 60.0
ENTRIES: Final = {
    "kubectl-parley": "from parley.program import kubectl_plugin as main",
    "kubectl_complete-parley": "from parley.completion import main",
}


def install(directory: Path, programs: Programs, kubeconfig: Path) -> None:
    """Put kubectl and its plugin into a directory; they use `kubeconfig` unless $KUBECONFIG or an option names another one."""
    usual = f'KUBECONFIG="${{KUBECONFIG:-{kubeconfig}}}"; export KUBECONFIG'
    lines = {"kubectl": f'exec {shlex.quote(programs.path("kubectl"))} "$@"'}
    for name, entry in ENTRIES.items():
        lines[name] = f'exec {shlex.quote(sys.executable)} -c {shlex.quote(f"{entry}; main()")} "$@"'
    for name, line in lines.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{usual}\n{line}\n")
        path.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Said:
    """The output of a command, and its exit code."""

    code: int
    printed: str
    faults: str

    def document(self) -> Any:
        return json.loads(self.printed)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with its plugin, as somebody types it. `directory` is empty at first."""

    directory: Path
    kubeconfig: Path

    def __call__(self, *words: str, kubeconfig: Path | None = None) -> Said:
        """`kubectl WORDS`, to its end."""
        own = {"PATH": f"{self.directory}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [str(self.directory / "kubectl"), *words],
            env={**os.environ, **own, "KUBECONFIG": str(kubeconfig or self.kubeconfig)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)


def kubectl(directory: Path, programs: Programs, plane: ControlPlane, users: Mapping[str, str]) -> Kubectl:
    """kubectl with a context for each user, whose token is given; the first one is the current one."""
    install(directory, programs, plane.kubeconfig)
    cluster = {"server": plane.url, "certificate-authority": str(plane.authority)}
    written = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
        "contexts": [{"name": name, "context": {"cluster": "here", "user": name}} for name in users],
        "current-context": next(iter(users)),
    }
    path = directory / "config"
    path.write_text(json.dumps(written))
    return Kubectl(directory, path)
