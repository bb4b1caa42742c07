"""`python -m tests.vm.soak`: guests under random load for some minutes, and whether anything went wrong."""

import asyncio
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from hosting import lifecycle, logs
from labs.vms import image
from labs.vms.assets import VmAssetsError
from labs.vms.image import ImageError, VmImage
from labs.vms.machine import MIB
from labs.vms.running import GuestError, paths_of
from protocol.values import Resources
from tests.support.vm_house import LEAST, SLOT_BYTES, HouseRules, inhabited
from tests.support.vm_looks import left_over
from tests.support.vms import guarded_directory
from tests.vm.soak.log_lines import JudgedLog, Source, judged
from tests.vm.soak.script import Bounds
from tests.vm.soak.soak_run import SoakRun
from tests.vm.soak.summary import Summary, moves_of

MOST_SLOTS: Final = 4
MOST: Final = LEAST + Resources(2000, MOST_SLOTS * SLOT_BYTES)
MOST_LOAD_CPUS: Final = 2.5
SPARE_CPUS: Final = 2
"""The node has so many vCPUs beyond one for each guest: fewer than all together may want."""
SPARE_SLOTS: Final = 8
"""The same for slots of memory."""
BASE_BYTES: Final = 190 * MIB
"""So much fits in a guest without slots."""
RELEASE_S: Final = 20.0
SILENCE_S: Final = 15.0
"""An informant of a guest that waits for this machine's cores may be late. The ledger would count all plugged vCPUs of that guest then, also where
the others have them: by rights, and a soak could not tell that from a fault."""
END_S: Final = 15.0
"""So long a soak that was told to end may take for its summary."""
EVIDENCE: Final = Path(".figures/vm-soak")
"""Logs and state are kept here after a fault."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak: how long the load lasts, and of which guests."""

    seconds: float
    seed: int
    guests: int
    image: VmImage

    @property
    def room(self) -> Resources:
        """The node's room: less than all guests together may have."""
        return LEAST * self.guests + Resources(1000 * SPARE_CPUS, SLOT_BYTES * SPARE_SLOTS)

    @property
    def bounds(self) -> Bounds:
        # A guest that cannot wait gets one slot more than its load needs, and gives that back later.
        room_slots = SPARE_SLOTS - (self.guests - 1)
        return Bounds(self.guests, MOST_LOAD_CPUS, MOST_SLOTS - 1, room_slots, BASE_BYTES, RELEASE_S)


async def soak(plan: SoakPlan, directory: Path, stop: lifecycle.Stop) -> Summary:
    """Run it in an empty directory. Raises `GuestError` and `ImageError` where guests do not start, `AssertionError` where they do not settle."""
    names = [f"guest-{number}" for number in range(plan.guests)]
    rules = HouseRules(plan.room, metrics_s=1.0, down_window_s=2.0, silence_s=SILENCE_S)
    began_s, is_whole = time.monotonic(), False
    async with inhabited(directory, plan.image, rules, *names) as house:
        for name in names:
            house.change(name, max=MOST)
        run = SoakRun(house, plan.seed, plan.bounds, click.echo)
        try:
            is_whole = await run.run(plan.seconds, stop)
        except* Exception as errors:  # noqa: BLE001 - whatever ends a soak is its fault, and is kept with the logs
            (directory / "ended.txt").write_text("".join(traceback.format_exception(errors)))
            for error in errors.exceptions:
                run.fault(f"the soak could not go on: {error!r}")
        if is_whole:
            for who, program in (("agent", house.agent), ("scheduler", house.scheduler)):
                if code := await program.end():
                    run.fault(f"the {who} ended with code {code}")
    found = _judged_logs(directory)
    for fault in found.faults:
        run.fault(fault)
    for part in ("house", *names):
        for left in left_over(directory / part):
            run.fault(f"left over: {left}")
    return Summary(
        seed=plan.seed,
        seconds=time.monotonic() - began_s,
        is_whole=is_whole,
        guests=plan.guests,
        room=plan.room,
        largest=run.counts.largest,
        looks=run.counts.looks,
        silent_looks=run.counts.silent_looks,
        calm_points=run.counts.calm_points,
        loads=run.counts.loads,
        expected_lines=found.expected,
        moves=moves_of(house.fold().sizes),
        before=run.before,
        after=run.after,
        faults=tuple(run.faults),
    )


def _judged_logs(directory: Path) -> JudgedLog:
    """All logs; each fault with the name of its log."""
    logs_: list[tuple[Source, Path]] = [
        ("agent", directory / "house/agent.log"),
        ("scheduler", directory / "house/scheduler.log"),
    ]
    for guest in sorted(directory.glob("guest-*")):
        paths = paths_of(guest)
        logs_ += [("guest", paths.serial), ("qemu", paths.errors)]
    faults, expected = [], 0
    for source, path in logs_:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        found = judged(source, lines)
        faults += [f"{path.relative_to(directory)}: {line[:500]}" for line in found.faults]
        expected += found.expected
    return JudgedLog(tuple(faults), expected)


def _keep(directory: Path, told: str) -> None:
    """Copy logs and state to `EVIDENCE`, in the place of those of an earlier soak, and what was told of them."""
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    shutil.copytree(
        directory,
        EVIDENCE,
        ignore=lambda folder, names: [each for each in names if _is_special(folder, each)],
    )
    (EVIDENCE / "summary.txt").write_text(f"{told}\n")
    click.echo(f"the logs are in {EVIDENCE}")


def _is_special(folder: str, name: str) -> bool:
    path = Path(folder, name)
    return not path.is_symlink() and not path.is_file() and not path.is_dir()


async def _ending_soon(soaking: Coroutine[Any, Any, Summary], stop: lifecycle.Stop) -> Summary | None:
    """The summary; None where the soak was to end before its guests had settled."""
    running = asyncio.create_task(soaking, name="soak")
    ending = asyncio.create_task(stop.wait(), name="end of the soak")
    try:
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({running}, timeout=END_S)
    finally:
        ending.cancel()
        running.cancel()  # unless it has ended
        await asyncio.wait({running, ending})
    return None if running.cancelled() else running.result()


async def _run(stop: lifecycle.Stop, plan: SoakPlan) -> int:
    """The exit code: 0 where nothing was wrong, 1 for faults, 2 where there can be no guest, 130 after Ctrl-C."""
    with guarded_directory() as directory:
        own = directory / "tmp"
        own.mkdir()
        os.environ["TMPDIR"] = str(own)  # of our programs, whatever they leave there
        try:
            summary = await _ending_soon(soak(plan, directory, stop), stop)
        except (GuestError, ImageError) as error:
            click.echo(str(error), err=True)
            return 2
        except AssertionError as error:
            click.echo(f"the guests did not settle: {error}", err=True)
            _keep(directory, str(error))
            return 1
        if summary is None:
            return lifecycle.INTERRUPTED
        left = [str(each) for each in own.rglob("*")]
        if left:
            summary = summary.with_fault(f"temporary files are left: {', '.join(left)}")
        told = "\n".join(summary.sentences())
        click.echo(told)
        if summary.faults:
            _keep(directory, told)
        click.echo(json.dumps(summary.document()))
    if summary.faults:
        return 1
    return 0 if summary.is_whole else lifecycle.INTERRUPTED


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seconds", type=click.FloatRange(20), default=600, show_default=True, help="How long the load lasts."
)
@click.option("--seed", type=int, help="Of the load; by default a new one, which is printed.")
@click.option("--guests", type=click.IntRange(1, 8), default=3, show_default=True)
def main(seconds: float, seed: int | None, guests: int) -> None:
    """Put random load on real guests, and look all the time whether anything goes wrong. Ctrl-C ends it cleanly."""
    logs.configure("error")
    seed = random.randrange(2**32) if seed is None else seed
    click.echo(f"{guests} guests under random load for {seconds:g} s; seed {seed}")
    try:
        plan = SoakPlan(seconds, seed, guests, image.build(click.echo))
    except (ImageError, VmAssetsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    sys.exit(lifecycle.run(lambda stop: _run(stop, plan)))


if __name__ == "__main__":
    main()
