"""The guest tells of itself: /proc as it is and as it might be, the page under both prefixes."""

import os
from pathlib import Path

import pytest

from informant.core.report import PREFIXES, Reading, page
from informant.core.workload import Shape, Workload
from informant.guest.machine import GIB, ProcSource, WorkloadSource
from protocol import exporter
from protocol.values import Resources

READING = Reading(0.5, 0.25, 0.125, 12.3456, 4, 8 * GIB, 5 * GIB, {"cpu_waiting": 1.5, "io_stalled": 0.25})
STAT = "cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"
MEMINFO = "MemTotal:        2048 kB\nMemFree:          100 kB\nMemAvailable:    1024 kB\n"
PRESSURE = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine without pressure information."""
    (tmp_path / "loadavg").write_text("0.50 0.25 0.12 2/345 6789\n")
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def test_load_cpu_time_and_memory_are_read(proc: Path) -> None:
    source = ProcSource(proc)
    reading = source.read()
    assert (reading.load1, reading.load5, reading.load15) == (0.5, 0.25, 0.12)
    # user, nice, system, irq, softirq and steal; neither idle nor waiting for disks
    assert reading.cpu_busy_s == pytest.approx((100 + 20 + 30 + 6 + 7 + 8) / os.sysconf("SC_CLK_TCK"))
    assert (reading.memory_total_bytes, reading.memory_available_bytes) == (2048 * 1024, 1024 * 1024)
    assert reading.cpus == 1
    assert reading.pressure_s == {}


def test_the_cpus_that_are_online_are_counted_and_those_that_were_stay_in_the_time_used(proc: Path) -> None:
    """As the kernel shows it: the first line adds up all CPUs that there could be, the others are of CPUs that are online."""
    (proc / "stat").write_text(STAT.replace("cpu0", "cpu0 1 2 3 4 5 6 7 8 0 0\ncpu2"))
    before = ProcSource(proc).read()
    (proc / "stat").write_text(STAT)
    after = ProcSource(proc).read()
    assert (before.cpus, after.cpus) == (2, 1)
    assert before.cpu_busy_s == after.cpu_busy_s


def test_pressure_is_read_where_the_kernel_has_it(proc: Path) -> None:
    (proc / "pressure").mkdir()
    (proc / "pressure" / "cpu").write_text(PRESSURE.format(1_500_000, 0).splitlines()[0] + "\n")
    (proc / "pressure" / "memory").write_text(PRESSURE.format(2_000_000, 250_000))
    assert ProcSource(proc).read().pressure_s == {
        "cpu_waiting": 1.5,
        "memory_waiting": 2.0,
        "memory_stalled": 0.25,
    }


BROKEN = {
    "no load": ("loadavg", ""),
    "no available memory": ("meminfo", "MemTotal: 2048 kB\n"),
    "memory without a number": ("meminfo", "MemTotal:\nMemAvailable: 1 kB\n"),
    "short stat": ("stat", "cpu 1 2 3\n"),
    "words in stat": ("stat", "cpu a b c d e f g h\n"),
}


@pytest.mark.parametrize(("name", "text"), BROKEN.values(), ids=BROKEN)
def test_a_machine_that_cannot_be_read_is_a_value_error(proc: Path, name: str, text: str) -> None:
    (proc / name).write_text(text)
    with pytest.raises(ValueError, match=r".*"):
        ProcSource(proc).read()


def test_pressure_without_a_total_is_left_out(proc: Path) -> None:
    (proc / "pressure").mkdir()
    (proc / "pressure" / "cpu").write_text("some avg10=0.00\n")
    assert ProcSource(proc).read().pressure_s == {}


def test_a_missing_file_is_an_os_error(proc: Path) -> None:
    (proc / "meminfo").unlink()
    with pytest.raises(OSError, match="meminfo"):
        ProcSource(proc).read()


def test_this_machine_can_be_read() -> None:
    source = ProcSource()
    first = source.read()
    source.resized(Resources(1, 1))
    second = source.read()
    assert 0 < second.memory_available_bytes <= second.memory_total_bytes
    assert second.cpu_busy_s >= first.cpu_busy_s > 0


def test_a_workload_uses_cpu_time_and_shows_the_size_it_was_told() -> None:
    source = WorkloadSource(Workload(Shape.DAY, 1), Resources(500, GIB))
    first = source.read()
    assert (first.cpus, first.memory_total_bytes) == (1, GIB)
    source.resized(Resources(3000, 2 * GIB))
    second = source.read()
    assert (second.cpus, second.memory_total_bytes) == (3, 2 * GIB)
    assert second.cpu_busy_s >= first.cpu_busy_s
    assert second.memory_total_bytes - second.memory_available_bytes == GIB // 4


def test_a_workload_that_wants_more_memory_than_there_is_uses_all_of_it() -> None:
    wants = Workload(Shape.STEP, 1, low_bytes=3 * GIB, high_bytes=3 * GIB)
    source = WorkloadSource(wants, Resources(500, GIB))
    used = []
    for size in (GIB, 4 * GIB):
        source.resized(Resources(500, size))
        reading = source.read()
        used.append(reading.memory_total_bytes - reading.memory_available_bytes)
    assert used == [GIB, 3 * GIB]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_page_is_read_by_agents_under_either_prefix(prefix: str) -> None:
    got = exporter.read_metrics(page(READING), prefix)
    assert (got.load_average_1min, got.load_average_5min) == (0.5, 0.25)
    names = [
        "load15",
        "cpu_busy_seconds_total",
        "cpus",
        "memory_MemTotal_bytes",
        "memory_MemAvailable_bytes",
        "pressure_cpu_waiting_seconds_total",
        "pressure_io_stalled_seconds_total",
    ]
    found = exporter.samples(page(READING), [prefix + name for name in names])
    assert [found[prefix + name] for name in names] == [0.12, 12.346, 4, 8 * GIB, 5 * GIB, 1.5, 0.25]


def test_every_line_of_the_page_comes_once_under_each_prefix() -> None:
    lines = page(READING).decode().splitlines()
    assert len(lines) == len(set(lines)) == 20 - 2
    assert [line.removeprefix("node_") for line in lines[:9]] == [
        line.removeprefix("host_") for line in lines[9:]
    ]


def test_the_page_for_agents_is_small_and_holds_all_that_they_read() -> None:
    small = page(READING, for_agent=True)
    assert len(small) < min(2048, len(page(READING)))
    for prefix in ("node_", "host_"):
        assert exporter.read_metrics(small, prefix) == exporter.read_metrics(page(READING), prefix)
        names = [
            f"{prefix}{name}" for name in ("cpu_busy_seconds_total", "cpus", "memory_MemAvailable_bytes")
        ]
        assert exporter.samples(small, names) == exporter.samples(page(READING), names)
