"""Runs inside a guest: notes when the kernel tells of pressure, of vCPUs and memory that came online, and of a new memory.high.

Everything is an event of the kernel, so nothing is polled and the probe costs nothing while nothing happens. It uses the standard
library only, but for the three calls that Python lacks. It reads requests from its standard input, a line each (NUMBER WORD), and
answers each with one line `PREFIX{json}`. Moments are nanoseconds of the guest's monotonic clock.
"""

import contextlib
import json
import os
import select
import socket
import time
from pathlib import Path
from typing import Any

from informant.guest import kernel

PREFIX = "parley-notes "
GROUP = Path("/sys/fs/cgroup/workload")
CPU_PRESSURE = "some 1000000 2000000"
"""The informant's own threshold: in a window of 2 s, tasks waited for 1 s."""
NETLINK_KOBJECT_UEVENT = 15
READ_BYTES = 8192


def number_in(path: Path) -> int | None:
    """The number in a file of a control group; None for `max`."""
    text = path.read_text().strip()
    return None if text == "max" else int(text)


def field_of(path: Path, name: str) -> int:
    """A number of a file with a name and a number a line."""
    fields = dict(line.split() for line in path.read_text().splitlines())
    return int(fields[name])


def open_uevents() -> socket.socket:
    """A socket for the kernel's events about its devices."""
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT)
    found.bind((0, 1))
    return found


def open_inotify(path: Path) -> int:
    """Changes of one file."""
    found = kernel.inotify_init()
    kernel.inotify_add_watch(found, path, kernel.IN_MODIFY)
    return found


def open_pressure() -> int:
    """The kernel's notes on waiting for a CPU in the workload's group."""
    found = os.open(GROUP / "cpu.pressure", os.O_RDWR | os.O_NONBLOCK)
    os.write(found, CPU_PRESSURE.encode() + b"\0")
    return found


class Notes:
    """The sources, and their events since somebody asked last."""

    def __init__(self) -> None:
        self.uevents = open_uevents()
        self.events = open_inotify(GROUP / "memory.events")
        self.limit = open_inotify(GROUP / "memory.high")
        self.pressure = open_pressure()
        self.hits = field_of(GROUP / "memory.events", "high")
        self.noted: list[dict[str, Any]] = []

    def note(self, at_ns: int, kind: str, **more: object) -> None:
        """Keep one moment."""
        self.noted.append({"kind": kind, "at_ns": at_ns, **more})

    def heard(self, descriptor: int, at_ns: int) -> None:
        """One of the sources tells something."""
        if descriptor == self.uevents.fileno():
            what, _, path = self.uevents.recv(READ_BYTES).split(b"\0")[0].decode().partition("@")
            self.note(at_ns, "device", what=what, device=path.rpartition("/")[2])
        elif descriptor == self.events:
            os.read(self.events, READ_BYTES)
            hits = field_of(GROUP / "memory.events", "high")
            if hits > self.hits:
                self.note(at_ns, "memory-hit", count=hits - self.hits)
            self.hits = hits
        elif descriptor == self.limit:
            os.read(self.limit, READ_BYTES)
            self.note(at_ns, "memory-high", bytes=number_in(GROUP / "memory.high"))
        else:
            self.note(at_ns, "cpu-pressure")

    def answer(self, word: str) -> dict[str, Any]:
        now = {"mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        if word == "notes":
            noted, self.noted = self.noted, []
            return {**now, "notes": noted}
        if word == "use":
            return {
                **now,
                "informant_us": field_of(GROUP.parent / "informant/cpu.stat", "usage_usec"),
                "probe_us": time.process_time_ns() // 1000,
                "memory_current": number_in(GROUP / "memory.current"),
                "memory_high": number_in(GROUP / "memory.high"),
            }
        return now


def serve() -> None:
    """Note and answer until standard input says `end`, or ends."""
    # Its moments must be those of the events, also while every CPU is busy and memory is short.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    Path("/proc/self/oom_score_adj").write_text("-1000")
    notes, rest = Notes(), b""
    poll = select.poll()
    for descriptor in (0, notes.uevents.fileno(), notes.events, notes.limit):
        poll.register(descriptor, select.POLLIN)
    poll.register(notes.pressure, select.POLLPRI)
    print(PREFIX + json.dumps({"number": 0}), flush=True)
    while True:
        ready = poll.poll()
        at_ns = time.monotonic_ns()
        for descriptor, _ in ready:
            if descriptor != 0:
                with contextlib.suppress(BlockingIOError):
                    notes.heard(descriptor, at_ns)
                continue
            read = os.read(0, READ_BYTES)
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                number, _, word = line.decode().partition(" ")
                if word == "end" or not read:
                    return
                print(PREFIX + json.dumps({"number": int(number), **notes.answer(word)}), flush=True)
            if not read:
                return


if __name__ == "__main__":
    serve()
