"""What the guest tells: one reading, its page in the exporter format, and whether a downscale fits it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.wire import DownscaleResult

PREFIXES: Final = ("node_", "host_")
_NOT_FOR_AGENTS: Final = ("load15 ", "cpus ", "pressure_io_")
MARGIN_BYTES: Final = 100 * 2**20
"""Memory that must stay free after a downscale. Source: reference/neon.md 4.3."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of the machine at one moment. `pressure_s` maps `cpu_waiting` and the like to seconds in total."""

    load1: float
    load5: float
    load15: float
    cpu_busy_s: float
    cpus: int
    memory_total_bytes: int
    memory_available_bytes: int
    pressure_s: Mapping[str, float] = field(default_factory=dict)


def page(reading: Reading, *, for_agent: bool = False) -> bytes:
    """The metrics page, every metric under both prefixes, because published agents ask for either.

    `for_agent` leaves out what no agent reads: the page is asked for every few seconds, of every VM of a node.
    """
    lines = [line for line in _lines(reading) if not for_agent or not line.startswith(_NOT_FOR_AGENTS)]
    return "".join(f"{prefix}{line}\n" for prefix in PREFIXES for line in lines).encode()


def _lines(reading: Reading) -> Iterator[str]:
    yield f"load1 {reading.load1:.2f}"
    yield f"load5 {reading.load5:.2f}"
    yield f"load15 {reading.load15:.2f}"
    yield f"cpu_busy_seconds_total {reading.cpu_busy_s:.3f}"
    yield f"cpus {reading.cpus}"
    yield f"memory_MemTotal_bytes {reading.memory_total_bytes}"
    yield f"memory_MemAvailable_bytes {reading.memory_available_bytes}"
    for name, seconds in reading.pressure_s.items():
        yield f"pressure_{name}_seconds_total {seconds:.6f}"


def approve(reading: Reading, memory_bytes: int) -> DownscaleResult:
    """Whether the guest can live in `memory_bytes`: what it uses now plus a margin must fit."""
    used = reading.memory_total_bytes - reading.memory_available_bytes
    if used + MARGIN_BYTES > memory_bytes:
        return DownscaleResult(
            ok=False, status=f"{used} bytes are in use, {MARGIN_BYTES} more must stay free of {memory_bytes}"
        )
    return DownscaleResult(ok=True, status="what is in use fits")
