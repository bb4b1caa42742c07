"""Loads of pods on hollow nodes: groups of cgroup v2 that are files, in which each pod uses what it wants and its limit gives."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.kube_parts.pods import PodHistory
from protocol.values import Resources

PASS_S: Final = 0.25
PERIODS_A_SECOND: Final = 10
MIB: Final = 2**20
USED_BYTES: Final = 60 * MIB
STILL: Final = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


class _Group:
    """The files of one pod, kept open for writing."""

    def __init__(self, path: Path, wanted_milli: int) -> None:
        path.mkdir(parents=True)
        self._path = path
        self.wanted_milli = wanted_milli
        self._used_us = self._periods = self._throttled = 0.0
        self._size = Resources(0, 0)
        still = {
            "memory.current": f"{USED_BYTES}\n",
            "memory.stat": f"anon {USED_BYTES}\nactive_file 0\ninactive_file 0\nslab_reclaimable 0\n",
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
            "cpu.pressure": STILL,
            "memory.pressure": STILL,
        }
        for name, text in still.items():
            (path / name).write_text(text)
        self._stat = os.open(path / "cpu.stat", os.O_WRONLY | os.O_CREAT)

    def goes_on(self, size: Resources, elapsed_s: float) -> None:
        """Time passes with that limit in force."""
        if size != self._size:
            self._size = size
            for name, text in (
                ("cpu.max", f"{size.vcpu_milli * 100:012} 100000\n"),
                ("memory.max", f"{size.memory_bytes:020}\n"),
            ):
                with os.fdopen(os.open(self._path / name, os.O_WRONLY | os.O_CREAT), "w") as file:
                    file.write(text)
        self._used_us += min(self.wanted_milli, size.vcpu_milli) * elapsed_s * 1000
        self._periods += elapsed_s * PERIODS_A_SECOND
        if self.wanted_milli > size.vcpu_milli:
            self._throttled += elapsed_s * PERIODS_A_SECOND
        text = f"usage_usec {self._used_us:015.0f}\nnr_periods {self._periods:012.0f}\nnr_throttled {self._throttled:012.0f}\n"
        os.pwrite(self._stat, f"{text}throttled_usec {self._throttled * 50_000:015.0f}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._stat)


class MadeLoads:
    """The groups of all pods below `root`; a thread lets time pass between `start` and `end`."""

    def __init__(self, root: Path, seen: Mapping[str, PodHistory], wanted_milli: int) -> None:
        self.root = root
        self._seen = seen
        self._groups = {
            name: _Group(root / "kubepods" / f"pod{each.pod['metadata']['uid']}", wanted_milli)
            for name, each in seen.items()
        }
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loads", daemon=True)

    def start(self) -> None:
        """Time passes from now on."""
        self._pass(0.0)
        self._thread.start()

    def end(self) -> None:
        """Leave the files as they are."""
        self._is_over.set()
        self._thread.join()
        for group in self._groups.values():
            group.close()

    def want(self, name: str, cpu_milli: int) -> None:
        self._groups[name].wanted_milli = cpu_milli

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._is_over.wait(PASS_S):
            now_s = time.monotonic()
            self._pass(now_s - last_s)
            last_s = now_s

    def _pass(self, elapsed_s: float) -> None:
        for name, group in self._groups.items():
            group.goes_on(self._seen[name].in_force, elapsed_s)
