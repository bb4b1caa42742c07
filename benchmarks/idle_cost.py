"""The cost of the demo while nothing much happens: CPU of all its processes together, memory of each.

`benchmarks/idle_cost.py [--short]`: starts the demo with 20 VMs (5 with --short), lets it settle, and measures. The
VMs follow their seeded workloads, so a few of them are scaled meanwhile; the machine's own load is not raised.
"""

import argparse
import contextlib
import json
import os
import platform
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict

import psutil


def _kind(process: psutil.Process) -> str:
    command = process.cmdline()
    return command[command.index("-m") + 1] if "-m" in command else "other"


def _drain(master: int) -> None:
    """Read what the demo draws until it ends."""
    with contextlib.suppress(OSError):
        while os.read(master, 65536):
            pass


def measure(vms: int, settle_s: float, watch_s: float) -> dict[str, float]:
    """Run the demo and take the figures."""
    with tempfile.TemporaryDirectory() as directory:
        # On a terminal of its own, so that drawing the live table is part of the cost.
        master, terminal = pty.openpty()
        demo = subprocess.Popen(
            [sys.executable, "-m", "parley", "demo", "--vms", str(vms), "--directory", directory],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
        )
        os.close(terminal)
        threading.Thread(target=_drain, args=(master,), daemon=True).start()
        try:
            print(f"settling for {settle_s:g} s, then watching for {watch_s:g} s …", flush=True)
            time.sleep(settle_s)
            root = psutil.Process(demo.pid)
            processes = [root, *root.children(recursive=True)]
            expected = vms + 3
            if len(processes) != expected:
                raise SystemExit(f"{len(processes)} processes run, {expected} should")
            before = {each: sum(each.cpu_times()[:2]) for each in processes}
            began = time.monotonic()
            time.sleep(watch_s)
            span_s = time.monotonic() - began
            cpu: dict[str, float] = defaultdict(float)
            memory: dict[str, list[float]] = defaultdict(list)
            for each in processes:
                kind = _kind(each)
                cpu[kind] += (sum(each.cpu_times()[:2]) - before[each]) / span_s * 100
                memory[kind].append(each.memory_info().rss / 2**20)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)
    print(f"{'program':<12}{'count':>6}{'CPU, % of a core':>18}{'largest, MiB':>14}")
    for kind in sorted(cpu):
        print(f"{kind:<12}{len(memory[kind]):>6}{cpu[kind]:>18.2f}{max(memory[kind]):>14.1f}")
    largest = max(max(sizes) for sizes in memory.values())
    print(f"{'all':<12}{len(processes):>6}{sum(cpu.values()):>18.2f}{largest:>14.1f}")
    return {
        "vms": vms,
        "watched_s": round(span_s, 1),
        "cpu_percent_of_core": round(sum(cpu.values()), 2),
        "largest_process_mib": round(largest, 1),
        **{f"{kind}_cpu_percent": round(value, 2) for kind, value in cpu.items()},
        **{f"{kind}_largest_mib": round(max(sizes), 1) for kind, sizes in memory.items()},
    }


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer VMs, less time")
    short = parser.parse_args().short
    figures = measure(5, 6, 5) if short else measure(20, 15, 30)
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    print(json.dumps({"benchmark": "idle_cost", "machine": machine, **figures}))


if __name__ == "__main__":
    main()
