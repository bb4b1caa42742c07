"""Cgroups for tests: a directory with the files of one, one in memory, and a real one of this machine."""

import asyncio
import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any, Final

import pytest

from informant.core.limits import Control, GroupLimits, Write
from informant.core.report import CgroupReading
from informant.guest.cgroup import Cgroup, FileCgroup
from informant.guest.watching import EventSource, PollSource, pressure
from tests.unit.hosting.raw_peers import PATIENCE_S

MIB: Final = 2**20
ROOT: Final = Path(__file__).parents[3]
CURRENT, INACTIVE = 600 * MIB, 100 * MIB
READ: Final = ("memory.current", "memory.stat", "memory.events", "memory.pressure", "cpu.pressure")
"""The files that are read beside the controls."""


def pressure_text(some_us: int, full_us: int) -> str:
    """A pressure file with these totals."""
    return "".join(
        f"{kind} avg10=0.00 avg60=0.11 avg300=0.22 total={total}\n"
        for kind, total in (("some", some_us), ("full", full_us))
    )


def stat_text(inactive_bytes: int, active_bytes: int = 0, slab_bytes: int = 0) -> str:
    """A memory.stat; other lines look like those that count."""
    return (
        f"anon 5\nfile 7\nactive_file {active_bytes}\ninactive_anon 13\ninactive_file {inactive_bytes}\n"
        f"file_dirty 17\nslab_reclaimable {slab_bytes}\nslab_unreclaimable 19\n"
    )


FILES: Final[Mapping[str, str]] = {
    "cgroup.procs": "4711\n",
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cgroup.freeze": "0\n",
    "cpu.max": "max 100000\n",
    "cpu.pressure": pressure_text(1_500_000, 0),
    "cpu.weight": "100\n",
    "memory.current": f"{CURRENT}\n",
    "memory.events": "low 0\nhigh 3\nmax 1\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.high": "max\n",
    "memory.max": "max\n",
    "memory.pressure": pressure_text(2_000_000, 250_000),
    "memory.stat": stat_text(INACTIVE),
}
"""A group that uses 600 MiB, 100 of them in vain, and has no limits."""
EVENTS: Final = {"low": 0, "high": 3, "max": 1, "oom": 0, "oom_kill": 0, "oom_group_kill": 0}
PRESSURE_S: Final = {"cpu_waiting": 1.5, "cpu_stalled": 0.0, "memory_waiting": 2.0, "memory_stalled": 0.25}
READING: Final = CgroupReading(
    current_bytes=CURRENT,
    needed_bytes=CURRENT - INACTIVE,
    high_bytes=None,
    max_bytes=None,
    events=EVENTS,
    cpu_quota_us=None,
    frozen=False,
    pressure_s=PRESSURE_S,
)
"""The reading that `FILES` give."""


class Tree:
    """A directory that looks like a cgroup v2; all of its files are regular ones."""

    def __init__(self, path: Path, without: tuple[str, ...] = ()) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name, text in FILES.items():
            if name not in without:
                (path / name).write_text(text)

    def put(self, name: str, text: str) -> None:
        """From now on a file says this."""
        (self.path / name).write_text(text)

    def uses(self, current_bytes: int, inactive_bytes: int = 0) -> None:
        self.put("memory.current", f"{current_bytes}\n")
        self.put("memory.stat", stat_text(inactive_bytes))

    def counts(self, **events: int) -> None:
        """From now on memory.events says these numbers; the others stay."""
        self.put("memory.events", "".join(f"{name} {n}\n" for name, n in {**EVENTS, **events}.items()))

    def waited(self, resource: str, some_us: int, full_us: int = 0) -> None:
        """From now on tasks have waited so long."""
        self.put(f"{resource}.pressure", pressure_text(some_us, full_us))

    def contents(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted(self.path.iterdir())}

    def vanish(self) -> None:
        shutil.rmtree(self.path)


@dataclass
class FakeCgroup:
    """A group in memory; its figures, and what happens to a write, may be changed at any time.

    A control in `failing` is refused with that error. One in `slow` says the new value at once, as the kernel's files
    do, and the write returns when its event is set. `writes` holds what was taken, in order, and `refused` what was not.
    """

    path: Path = Path("/nowhere/workload")
    current_bytes: int = CURRENT
    inactive_bytes: int = INACTIVE
    limits: GroupLimits = field(default_factory=GroupLimits)
    events: dict[str, int] = field(default_factory=lambda: dict(EVENTS))
    pressure_s: dict[str, float] = field(default_factory=lambda: dict(PRESSURE_S))
    lacking: dict[str, str] = field(default_factory=dict)
    failing: dict[Control, OSError] = field(default_factory=dict)
    slow: dict[Control, threading.Event] = field(default_factory=dict)
    writes: list[tuple[Control, str]] = field(default_factory=list)
    refused: list[tuple[Control, str]] = field(default_factory=list)

    def read(self) -> CgroupReading:
        def has(name: str) -> bool:
            return name not in self.lacking

        current = self.current_bytes if has("memory.current") else None
        inactive = self.inactive_bytes if has("memory.stat") else 0
        limits = self.limits
        return CgroupReading(
            current_bytes=current,
            needed_bytes=None if current is None else max(0, current - inactive),
            high_bytes=limits.high_bytes if has("memory.high") else None,
            max_bytes=limits.max_bytes if has("memory.max") else None,
            events=dict(self.events) if has("memory.events") else {},
            cpu_quota_us=limits.cpu_quota_us if has("cpu.max") else None,
            frozen=limits.frozen if has("cgroup.freeze") else None,
            pressure_s={
                name: seconds
                for name, seconds in self.pressure_s.items()
                if has(f"{name.partition('_')[0]}.pressure")
            },
        )

    def write(self, control: Control, text: str) -> None:
        """Take a value, or refuse it; may wait."""
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        wrong = self.failing.get(control) or (error if control in self.lacking else None)
        if wrong is not None:
            self.refused.append((control, text))
            raise wrong
        value, *period = text.split()
        assert len(period) == (control is Control.CPU_MAX), text
        self.limits = self.limits.after(Write(control, None if value == "max" else int(value)))
        self.writes.append((control, text))
        held = self.slow.get(control)
        assert held is None or held.wait(PATIENCE_S), "nobody let the write return"

    def lacks(self) -> Mapping[str, str]:
        return dict(self.lacking)

    def vanish(self) -> None:
        self.lacking = dict.fromkeys((*READ, *Control), "is not there")


# ---------------------------------------------------------------- this machine's own


def unified() -> Path | None:
    """The mount point of cgroup v2 on this machine; None without one."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return next((Path(line.split()[1]) for line in lines if line.split()[2] == "cgroup2"), None)


@contextlib.contextmanager
def real_group() -> Iterator[Path]:
    """A new group of this machine for the length of a `with` block; skips the test where none can be made."""
    mount = unified()
    if mount is None:
        pytest.skip("no cgroup v2 is mounted here: run `mount -t cgroup2 none DIRECTORY` as root to see this")
    path = mount / f"parley-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made in {mount} ({error.strerror}): run as root to see this")
    try:
        if not (path / "cgroup.freeze").exists():
            pytest.skip("this kernel cannot freeze a group: Linux 5.2 or later is needed to see this")
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a group; one that a process has just left may be busy for a moment."""
    limit = time.monotonic() + PATIENCE_S
    while path.exists():
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > limit:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def echoing(group: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group that says whatever it is told, for the length of a `with` block."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()


def echo(process: "subprocess.Popen[bytes]", text: bytes | None, within_s: float) -> bytes:
    """Tell it something, or nothing more, and hear what it says to that in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    if text is not None:
        process.stdin.write(text)
    return os.read(process.stdout.fileno(), 99) if select([process.stdout], [], [], within_s)[0] else b""


def descriptors() -> list[str]:
    """The files that this process has open, apart from the look itself."""
    gc.collect()  # what nobody closed is not counted once before and once not
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(f"{link.name} {link.readlink()}")
    return sorted(found)


_MAY_NOT_DROP: Final = 77
_DROP: Final = f"""
if os.getuid() == 0:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    except OSError:
        sys.exit({_MAY_NOT_DROP})
"""


def as_nobody(imports: str, code: str, directory: Path) -> str:
    """The output of Python code that runs in a directory with no privileges: as this user, or as nobody for root."""
    drop = (
        "import os\nif os.getuid() == 0:\n    os.setgroups([])\n    os.setgid(65534)\n    os.setuid(65534)\n"
    )
    start = f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\n{imports}\n{drop}"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}{code}"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * 3,
    )
    if done.returncode == _MAY_NOT_DROP:
        pytest.skip("this user may not become nobody: run as an ordinary user, or as root, to see this")
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- subjects of the conformance suite

ALL: Final = (*READ, *Control)
PART: Final = ("memory.stat", "memory.high", "cpu.max", "cpu.pressure")
FIELDS: dict[Control, str] = {
    Control.MEMORY_HIGH: "high_bytes",
    Control.MEMORY_MAX: "max_bytes",
    Control.CPU_MAX: "cpu_quota_us",
    Control.FREEZE: "frozen",
}
# control → texts in this order, and what is read after each: the second is shorter than the first.
TEXTS: dict[Control, list[tuple[str, int | bool | None]]] = {
    Control.MEMORY_HIGH: [(str(512 * MIB), 512 * MIB), (str(64 * MIB), 64 * MIB), ("max", None)],
    Control.MEMORY_MAX: [(str(768 * MIB), 768 * MIB), (str(96 * MIB), 96 * MIB), ("max", None)],
    Control.CPU_MAX: [("150000 100000", 150_000), ("2500 100000", 2500), ("max 100000", None)],
    Control.FREEZE: [("1", True), ("0", False), ("1", True)],
}


@dataclass(frozen=True)
class Subject:
    """One implementation of the port: which files it has, and how its group goes away."""

    cgroup: Cgroup
    has: tuple[str, ...]
    vanish: Callable[[], None]

    def controls(self) -> list[Control]:
        return [control for control in Control if control in self.has]

    def limits(self) -> dict[str, Any]:
        """The values of the controls."""
        reading = self.cgroup.read()
        return {field: getattr(reading, field) for field in FIELDS.values()}


def without(names: tuple[str, ...]) -> tuple[str, ...]:
    """All files but these."""
    return tuple(name for name in ALL if name not in names)


@contextlib.contextmanager
def made(kind: str, directory: Path) -> Iterator[Subject]:
    lacking = PART if kind.endswith("in part") else ()
    match kind.partition(" ")[0]:
        case "memory":
            fake = FakeCgroup(lacking=dict.fromkeys(lacking, "is not there"))
            yield Subject(fake, without(lacking), fake.vanish)
        case "files":
            tree = Tree(directory / "group", lacking)
            yield Subject(FileCgroup(tree.path), without(lacking), tree.vanish)
        case _:
            with real_group() as path:
                has = tuple(name for name in ALL if (path / name).exists())
                yield Subject(FileCgroup(path), has, path.rmdir)


KINDS = ["memory", "memory in part", "files", "files in part", "kernel"]


# ---------------------------------------------------------------- files that change


@dataclass(frozen=True)
class Watched:
    """A file, how to change it, and a way of hearing of that."""

    path: Path
    make: Callable[[], EventSource]
    change: Callable[[], None]


def regular(path: Path, source: Callable[[Path], EventSource]) -> Watched:
    """A file of a directory; it grows."""
    path.write_text("0\n")

    def change() -> None:
        with path.open("a") as file:
            file.write("1\n")

    return Watched(path, lambda: source(path), change)


def kernels(group: Path, source: Callable[[Path], EventSource]) -> Watched:
    """The events of a real group; it is frozen and thawed in turn."""
    path, freeze = group / "cgroup.events", group / "cgroup.freeze"

    def change() -> None:
        before = path.read_text()
        freeze.write_text("0" if "frozen 1" in before else "1")
        assert path.read_text() != before

    return Watched(path, lambda: source(path), change)


QUIET_S: Final = 0.02
"""How long nothing must be heard. No test fails because a machine is slow: what should not come does not come later."""


async def heard(source: EventSource) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await source.changed()


async def is_quiet(source: EventSource) -> bool:
    try:
        async with asyncio.timeout(QUIET_S):
            await source.changed()
    except TimeoutError:
        return True
    return False


async def settled(source: EventSource) -> int:
    """Take what is still told of earlier changes; how often that was."""
    count = 0
    while not await is_quiet(source):
        count += 1
        assert count < 100, "it is told without end"
    return count


def refusing(number: int) -> Callable[..., int]:
    """A call that fails with this number."""

    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


@dataclass
class Kernel:
    """Stands where PollSource does: takes only windows that are multiples of some time, and keeps what was asked."""

    every_us: int = 1
    asked: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=lambda: [errno.EINVAL])
    paths: list[Path] = field(default_factory=list)
    told: str = ""

    def __call__(self, path: Path, trigger: str) -> "Kernel":
        self.asked.append(trigger)
        self.paths.append(path)
        self.told = trigger
        if int(trigger.split()[2]) % self.every_us:
            number = self.numbers[min(len(self.asked), len(self.numbers)) - 1]
            raise OSError(number, os.strerror(number))
        return self


def trigger(path: Path, share: float, over_s: float) -> PollSource:
    """A pressure trigger of this kernel; skips the test where there can be none."""
    if not path.exists():
        pytest.skip(f"there is no {path}: a kernel with PSI (psi=1) is needed to see this")
    try:
        with path.open("r+b", buffering=0) as tried:
            tried.write(b"some 200000 2000000\0")
    except OSError as error:
        pytest.skip(
            f"this kernel refuses triggers ({error.strerror}): Linux 6.5, or root, is needed to see this"
        )
    return pressure(path, share, over_s)
