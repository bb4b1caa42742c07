"""A tree of cgroups v2 as a node shows it, with loads that are made up and limits that a hollow node keeps.

The test sets the use that a container wants; the limit that the kubelet has written bounds the use that it gets, and the rest is
throttled, as the kernel would tell it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hosting.kubernetes.resources import Manifest

LOOK_S: Final = 0.1
PERIOD_US: Final = 100_000
MIB: Final = 1024**2
_STILL: Final = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)


class CgroupLoads:
    """Keeps the files below `root` up to date. `limits` gives what the node's kubelet has written, by NAMESPACE/NAME, and `pods` the
    pods that use `cpus` and `memory_bytes` each."""

    def __init__(
        self,
        root: Path,
        pods: Callable[[], list[Manifest]],
        limits: Callable[[], Mapping[str, Mapping[str, int]]],
        *,
        cpus: float,
        memory_bytes: int = 32 * MIB,
    ) -> None:
        self._root = root
        self._pods = pods
        self._limits = limits
        self._cpus = cpus
        self._memory_bytes = memory_bytes
        self._used_us: dict[str, float] = {}
        self._throttled: dict[str, float] = {}
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        (root / "kubepods").mkdir(parents=True)
        self._write(root / "kubepods", 0, 0, 0, {})

    def follow(self) -> None:
        """Let time pass, until `end`."""
        last_s = self._began_s
        while not self._is_over.wait(LOOK_S):
            now_s = time.monotonic()
            self._pass(now_s - last_s, now_s - self._began_s)
            last_s = now_s

    def end(self) -> None:
        """Leave the files as they are."""
        self._is_over.set()

    def _pass(self, elapsed_s: float, whole_s: float) -> None:
        limits = self._limits()
        for pod in self._pods():
            metadata, uid = pod["metadata"], pod["metadata"]["uid"]
            limit = limits.get(f"{metadata['namespace']}/{metadata['name']}", {})
            most = limit.get("cpuQuotaUs", 0) / PERIOD_US or self._cpus
            self._used_us[uid] = self._used_us.get(uid, 0) + min(self._cpus, most) * elapsed_s * 1e6
            if self._cpus > most:
                self._throttled[uid] = self._throttled.get(uid, 0) + elapsed_s * 1e6 / PERIOD_US
            group = self._root / "kubepods" / f"pod{uid}"
            for path in (group, group / "main"):
                path.mkdir(exist_ok=True)
                self._write(
                    path,
                    self._used_us[uid],
                    whole_s * 1e6 / PERIOD_US,
                    self._throttled.get(uid, 0),
                    limit,
                )

    def _write(
        self, path: Path, used_us: float, periods: float, throttled: float, limit: Mapping[str, int]
    ) -> None:
        throttled_us = throttled * PERIOD_US / 2
        quota, most = limit.get("cpuQuotaUs", 0), limit.get("memoryBytes", 0)
        events = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"
        files = {
            "cpu.stat": f"usage_usec {used_us:.0f}\nuser_usec {used_us:.0f}\nsystem_usec 0\nnr_periods {periods:.0f}\n"
            f"nr_throttled {throttled:.0f}\nthrottled_usec {throttled_us:.0f}\n",
            "cpu.max": f"{quota if quota > 0 else 'max'} {PERIOD_US}\n",
            "memory.current": f"{self._memory_bytes}\n",
            "memory.max": f"{most if most > 0 else 'max'}\n",
            "memory.high": "max\n",
            "memory.stat": f"anon {self._memory_bytes}\nactive_file 0\ninactive_file 0\nslab_reclaimable 0\n",
            "memory.events": events,
            "memory.events.local": events,
            **{f"{each}.pressure": _STILL for each in ("cpu", "memory", "io")},
        }
        for name, text in files.items():
            with (path / name).open("a+" if not (path / name).exists() else "r+") as file:
                file.write(text)
                file.truncate()


@contextmanager
def cgroup_loads(loads: CgroupLoads) -> Iterator[CgroupLoads]:
    """Time passes for the length of a `with` block."""
    thread = threading.Thread(target=loads.follow, name="cgroups", daemon=True)
    thread.start()
    try:
        yield loads
    finally:
        loads.end()
        thread.join()
