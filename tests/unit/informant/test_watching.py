"""Sources of events: the same clauses for each way of hearing, who is asked first, and pressure."""

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from informant.guest import kernel, watching
from informant.guest.watching import (
    SOURCES,
    EventSource,
    InotifySource,
    LastingSource,
    PollingSource,
    PollSource,
    SourceName,
    listen,
    pressure,
)
from tests.unit.informant.cgroup_tree import (
    FILES,
    Kernel,
    Tree,
    Watched,
    descriptors,
    heard,
    is_quiet,
    kernels,
    real_group,
    refusing,
    regular,
    settled,
    trigger,
)

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
CPU_PRESSURE = Path("/proc/pressure/cpu")


def _polling(path: Path) -> EventSource:
    return PollingSource(path, every_s=0.002)


def _lasting(*allowed: SourceName, every_s: float = 0.005) -> Callable[[Path], EventSource]:
    """One that looks so often whether it is still the same file that a test meets it."""
    return lambda path: LastingSource(path, lambda: listen(path, allowed), every_s)


def _lasting_polling(path: Path) -> EventSource:
    return LastingSource(path, lambda: (_polling(path), {}), 0.005)


WAYS: dict[str, tuple[bool, Callable[[Path], EventSource]]] = {
    "inotify on a file": (False, InotifySource),
    "polling a file": (False, _polling),
    "poll on the kernel's file": (True, PollSource),
    "inotify on the kernel's file": (True, InotifySource),
    "polling the kernel's file": (True, _polling),
    "inotify on whatever file is there": (False, _lasting("inotify")),
    "poll on whatever file of the kernel is there": (True, _lasting("poll")),
}


@pytest.fixture(params=WAYS)
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    is_kernels, source = WAYS[request.param]
    with contextlib.ExitStack() as stack:
        if is_kernels:
            yield kernels(stack.enter_context(real_group()), source)
        else:
            yield regular(tmp_path / "events", source)


# ---------------------------------------------------------------- every way of hearing


async def a_change_is_told_each_time(watched: Watched, source: EventSource) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(heard(source))
        await asyncio.sleep(0)
        watched.change()
        await waiting
        await settled(source)


async def nothing_is_told_while_nothing_changes(watched: Watched, source: EventSource) -> None:
    assert await is_quiet(source)
    watched.path.read_text()
    assert await is_quiet(source)
    watched.change()
    await heard(source)
    await settled(source)
    watched.path.read_text()
    assert await is_quiet(source)


async def several_changes_may_be_told_as_one_and_never_more_often(
    watched: Watched, source: EventSource
) -> None:
    for _ in range(5):
        watched.change()
    await heard(source)
    assert await settled(source) < 5


async def a_change_before_anybody_waits_is_not_lost(watched: Watched, source: EventSource) -> None:
    watched.change()
    await asyncio.sleep(0)
    await heard(source)
    await settled(source)
    watched.change()
    for _ in range(10):
        await asyncio.sleep(0)
    await heard(source)


async def who_gives_up_waiting_leaves_it_usable(watched: Watched, source: EventSource) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(source.changed())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    assert await is_quiet(source)
    watched.change()
    await heard(source)


async def a_change_while_nobody_waits_any_more_is_told_to_the_next(
    watched: Watched, source: EventSource
) -> None:
    waiting = asyncio.create_task(source.changed())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    watched.change()
    await heard(source)


Clause = Callable[[Watched, EventSource], Awaitable[None]]
CLAUSES: list[Clause] = [
    a_change_is_told_each_time,
    nothing_is_told_while_nothing_changes,
    several_changes_may_be_told_as_one_and_never_more_often,
    a_change_before_anybody_waits_is_not_lost,
    who_gives_up_waiting_leaves_it_usable,
    a_change_while_nobody_waits_any_more_is_told_to_the_next,
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_every_source(clause: Clause, watched: Watched, loop: str) -> None:
    async def keep() -> None:
        source = watched.make()
        try:
            await clause(watched, source)
        finally:
            source.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(keep())


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_gives_back_every_descriptor(watched: Watched, loop: str) -> None:
    async def use() -> None:
        for number in range(4):
            source = watched.make()
            watched.change()
            await heard(source)
            source.close()
            await asyncio.sleep(0)
            if not number:
                before.extend(descriptors())  # the first one may make the loop open its own
        assert descriptors() == before

    before: list[str] = []
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(use())


async def test_two_may_hear_of_one_file(watched: Watched) -> None:
    first, second = watched.make(), watched.make()
    watched.change()
    await heard(first)
    await heard(second)
    first.close()
    await settled(second)
    watched.change()
    await heard(second)
    second.close()


async def test_polling_hears_that_a_file_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "events"
    source = _polling(path)
    assert await is_quiet(source)
    path.write_text("high 0\n")
    await heard(source)
    assert await is_quiet(source)
    path.unlink()
    await heard(source)


@pytest.mark.parametrize("make", [_lasting("inotify"), _lasting_polling, _lasting(*SOURCES)])
async def test_a_file_that_is_made_anew_is_told_and_listened_to(
    make: Callable[[Path], EventSource], tmp_path: Path
) -> None:
    """A cgroup goes with its workload and comes with the next one."""
    before = descriptors()
    watched = regular(tmp_path / "events", make)
    source = watched.make()
    for _ in range(3):
        new = watched.path.with_suffix(".new")
        new.write_text("0\n")  # while the old one is there: a number of its own, as every group has
        watched.path.unlink()
        assert await settled(source) <= 1, "a file that is gone is gone once"
        new.rename(watched.path)
        await heard(source)
        await settled(source)
        watched.change()
        await heard(source)
    source.close()
    assert descriptors() == before


async def test_a_file_that_comes_only_later_is_listened_to_as_well_as_can_be(tmp_path: Path) -> None:
    path = tmp_path / "events"
    source = LastingSource(path, lambda: listen(path), every_s=0.005)
    missing = dict.fromkeys(("inotify", "poll"), "no such file or directory")
    assert (source.name, source.lacks) == ("polling", missing)
    assert await is_quiet(source)
    path.write_text("")
    await heard(source)
    assert (source.name, source.lacks) == ("inotify", {})
    source.close()


def test_a_source_that_cannot_be_had_leaves_no_descriptor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = tmp_path / "events", descriptors()
    for source in (InotifySource, PollSource):
        with pytest.raises(FileNotFoundError):
            source(path)
    path.write_text("0\n")
    with pytest.raises(PermissionError) as caught:
        PollSource(path)
    assert descriptors() == before, "while the error is still being told"
    assert caught.value.errno == errno.EPERM
    monkeypatch.setattr(kernel, "inotify_add_watch", refusing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        InotifySource(path)
    assert descriptors() == before


# ---------------------------------------------------------------- the C library


def test_errors_of_the_c_library_carry_number_and_text(tmp_path: Path) -> None:
    instance = kernel.inotify_init()
    try:
        assert not os.get_blocking(instance)
        assert not os.get_inheritable(instance)
        with pytest.raises(FileNotFoundError) as caught:
            kernel.inotify_add_watch(instance, tmp_path / "nothing", kernel.IN_MODIFY)
        assert (caught.value.errno, caught.value.strerror) == (errno.ENOENT, os.strerror(errno.ENOENT))
    finally:
        os.close(instance)
    with pytest.raises(OSError, match="Bad file"):
        kernel.inotify_add_watch(instance, tmp_path, kernel.IN_MODIFY)
    with pytest.raises(OSError, match="Invalid"):
        kernel.mlockall(1 << 20)  # there is no such flag


# ---------------------------------------------------------------- who is asked first


EXHAUSTED = {"inotify": "too many open files"}
NO_POLL = {"poll": "operation not permitted"}


async def test_poll_is_next_on_the_kernels_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "inotify_init", refusing(errno.EMFILE))
    with real_group() as group:
        watched = kernels(group, PollSource)
        source, lacks = listen(watched.path)
        assert (source.name, type(source), lacks) == ("poll", PollSource, EXHAUSTED)
        watched.change()
        await heard(source)
        source.close()


ALLOWED: list[tuple[tuple[SourceName, ...], SourceName, dict[str, str]]] = [
    (("inotify",), "inotify", {}),
    (("poll",), "polling", NO_POLL),
    (("polling",), "polling", {}),
    (("polling", "inotify"), "polling", {}),
    (("poll", "inotify"), "inotify", NO_POLL),
]


@pytest.mark.parametrize(("allowed", "name", "why"), ALLOWED)
async def test_only_what_is_allowed_is_tried(
    allowed: tuple[SourceName, ...], name: str, why: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "events"
    path.write_text("0\n")
    source, lacks = listen(path, allowed)
    source.close()
    assert (source.name, lacks) == (name, why)


# ---------------------------------------------------------------- pressure


WINDOWS = [
    (1, 0.5, 3.0, ["some 1500000 3000000"]),
    (1, 0.1, 1.0, ["some 100000 1000000"]),
    (2_000_000, 0.1, 1.0, ["some 100000 1000000", "some 200000 2000000"]),
    (2_000_000, 0.5, 3.0, ["some 1500000 3000000", "some 2000000 4000000"]),
    (2_000_000, 0.5, 4.0, ["some 2000000 4000000"]),
    (2_000_000, 0.25, 9.5, ["some 2375000 9500000", "some 2500000 10000000"]),
    # The kernel's own bounds are half a second and ten seconds.
    (1, 0.5, 0.1, ["some 250000 500000"]),
    (1, 0.5, 3600.0, ["some 5000000 10000000"]),
    # Neither never nor more than always.
    (1, 1e-9, 1.0, ["some 1 1000000"]),
    (1, 1.0, 2.0, ["some 2000000 2000000"]),
    (1, 7.0, 2.0, ["some 2000000 2000000"]),
]


@pytest.mark.parametrize(("every_us", "share", "over_s", "asked"), WINDOWS)
def test_a_window_that_is_refused_is_rounded_up_to_two_seconds(
    every_us: int, share: float, over_s: float, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(every_us)
    monkeypatch.setattr(watching, "PollSource", kernel)
    taken: object = pressure(CPU_PRESSURE, share, over_s)
    assert (taken, kernel.asked) == (kernel, asked)


def test_what_the_kernel_refuses_twice_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(10**9, numbers=[errno.EINVAL, errno.EBUSY])
    monkeypatch.setattr(watching, "PollSource", kernel)
    with pytest.raises(OSError, match="busy") as caught:
        pressure(CPU_PRESSURE, 0.1, 1.0)
    assert caught.value.errno == errno.EBUSY
    assert kernel.asked == ["some 100000 1000000", "some 200000 2000000"]


async def test_a_group_in_which_nobody_waits_is_quiet() -> None:
    with real_group() as group:
        source = trigger(group / "memory.pressure", 0.1, 2.0)
        assert source.told == "some 200000 2000000"
        assert await is_quiet(source)
        source.close()


# ---------------------------------------------------------------- groups that go and come


@pytest.mark.parametrize("name", ["cgroup.events", "memory.pressure"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_file_that_is_gone_is_told_a_few_times_at_most(name: str, loop: str) -> None:
    async def gone() -> None:
        with real_group() as group:
            source = PollSource(group / name) if name == "cgroup.events" else pressure(group / name, 0.1, 2.0)
            (group / "cgroup.freeze").write_text("1")
            group.rmdir()
            await settled(source)
            source.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(gone())


@pytest.mark.parametrize(("allowed", "name"), [(SOURCES, "inotify"), (("poll",), "poll")])
async def test_a_group_that_is_made_anew_is_told_and_listened_to(
    allowed: tuple[SourceName, ...], name: SourceName
) -> None:
    with real_group() as group:
        source = _lasting(*allowed)(group / "cgroup.events")
        (group / "cgroup.freeze").write_text("1")
        group.rmdir()
        await settled(source)
        group.mkdir()
        await heard(source)
        await settled(source)
        (group / "cgroup.freeze").write_text("1")
        await heard(source)
        assert source.name == name
        source.close()


async def test_a_trigger_of_a_group_that_is_made_anew_is_set_again() -> None:
    with real_group() as group:
        path = group / "cpu.pressure"
        source = LastingSource(path, lambda: (pressure(path, 0.1, 2.0), {}), every_s=0.005)
        group.rmdir()
        await settled(source)
        group.mkdir()
        await heard(source)
        assert (source.name, source.told.startswith("some ")) == ("poll", True)
        source.close()


def test_a_poll_that_runs_out_of_descriptors_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with real_group() as group:
        before = descriptors()
        monkeypatch.setattr(os, "dup", refusing(errno.EMFILE))
        with pytest.raises(OSError, match="Too many") as caught:
            PollSource(group / "cgroup.events")
        assert descriptors() == before, caught


def test_a_trigger_is_not_written_to_a_file_that_takes_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "group")
    with pytest.raises(PermissionError):
        pressure(tree.path / "memory.pressure", 0.1, 1.0)
    assert tree.contents() == {name: text.encode() for name, text in FILES.items()}
