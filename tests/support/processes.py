"""The real programs as child processes of a test: started on loopback, ended by their own pid."""

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S


class Program:
    """A running program with its output in a file; `module` may be `-c`, followed by code."""

    def __init__(self, module: str, *arguments: str, output: Path) -> None:
        how = () if module == "-c" else ("-m",)
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *how, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """The output so far."""
        return self.output.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            raise


@contextlib.contextmanager
def running(module: str, *arguments: str, output: Path) -> Iterator[Program]:
    """A program for the length of a `with` block."""
    program = Program(module, *arguments, output=output)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.end(signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on, and that no other run of the tests is given while this one lives.

    It lies below the range that the kernel takes ports for connections from, so that it is still free when the
    program that it is for starts, or starts again.
    """
    while True:
        port = random.randrange(12_000, 32_000)
        # A name without a file: the kernel frees it when this process ends, and nothing is left behind.
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0parley-test-port-{port}")
            with socket.socket() as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            _ = claim.detach()  # open until this process ends
            return port


def fetch(port: int, path: str) -> bytes:
    """`GET` a page of a program on loopback."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        body: bytes = response.read()
        return body


def post(port: int, body: bytes, path: str = "/", **headers: str) -> tuple[int, bytes]:
    """`POST` a body; the status and the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def vms(port: int) -> dict[str, dict[str, Any]]:
    """The agent's VMs by name."""
    return {vm["vm"]: vm for vm in json.loads(fetch(port, "/v1/vms"))["vms"]}


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def amount(cpus: int) -> dict[str, Any]:
    return {"cpu": cpus, "memory": f"{cpus}Gi"}


def cluster_file(path: Path, names: list[str], room: int = 8, most: int = 4) -> Path:
    """A cluster of one node `n1` with VMs of 1 to `most` units."""
    vms_ = [
        {
            "namespace": "d",
            "name": name,
            "uid": f"uid-{name}",
            "node": "n1",
            "min": amount(1),
            "max": amount(most),
        }
        for name in names
    ]
    node = {"name": "n1", "allocatable": amount(room), "computeUnit": amount(1)}
    return write_json(path, {"nodes": [node], "vms": vms_})


def agent_file(path: Path, scheduler: int, informants: dict[str, int], most: int = 4) -> Path:
    """The agent's settings for the same VMs; its state lies beside the file."""
    vms_ = [
        {
            "namespace": "d",
            "name": name,
            "uid": f"uid-{name}",
            "informant": f"http://127.0.0.1:{port}",
            "min": amount(1),
            "max": amount(most),
            "computeUnit": amount(1),
        }
        for name, port in informants.items()
    ]
    content = {
        "node": "n1",
        "scheduler": f"http://127.0.0.1:{scheduler}/",
        "stateDirectory": str(path.parent / "state"),
        "periods": {"metrics": 0.5, "tick": 2},
        "resizeDelay": 0.05,
        "vms": vms_,
    }
    return write_json(path, content)
