"""Clean up after tests with guests, also when their runner was killed: a program of its own, in a session of its own.

    python -I -S guardian.py DIRECTORY

It waits for the end of its standard input, a pipe whose other end only the runner holds. Then it kills every process that inherited
the runner's mark (see `MARK`), and removes the directory. It needs nothing but the standard library.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

MARK: Final = "PARLEY_GUARDED_BY"
"""The environment variable of everything that a runner starts; its value is the runner's directory."""
_TRIES: Final = 100
_PAUSE_S: Final = 0.05


def marked(directory: str) -> list[int]:
    """The processes that were started with this mark."""
    wanted = f"{MARK}={directory}".encode()
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdecimal() or int(each.name) == os.getpid():
            continue
        try:
            if wanted in (each / "environ").read_bytes().split(b"\0"):
                found.append(int(each.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def clean(directory: Path) -> None:
    """Kill and remove until nothing is left."""
    for _ in range(_TRIES):
        for pid in marked(str(directory)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() and not marked(str(directory)):
            return
        time.sleep(_PAUSE_S)


def main() -> None:
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
