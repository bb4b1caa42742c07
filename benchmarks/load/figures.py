"""Figures: percentiles, the machine, the faults, and a small table for people."""

import platform
import sys

import psutil

SHOWN_FAULTS = 5


class Faults:
    """PermitStats what went wrong and shows the first few."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= SHOWN_FAULTS:
            print(f"error: {text[:400]}", file=sys.stderr, flush=True)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_ms(latencies_s: list[float]) -> dict[str, float | None]:
    """p50, p99 and maximum in milliseconds; None if nothing was measured."""
    if not latencies_s:
        return {"p50_ms": None, "p99_ms": None, "max_ms": None}
    ordered = sorted(latencies_s)
    found = {"p50_ms": percentile(ordered, 0.5), "p99_ms": percentile(ordered, 0.99), "max_ms": ordered[-1]}
    return {name: round(value * 1000, 3) for name, value in found.items()}


def machine() -> str:
    return f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"


def table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print a table; the first column is text."""
    cells = [header, *(tuple("-" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        rest = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join([f"{row[0]:<{widths[0]}}", *rest]))
