"""`parley demo`: a scheduler, an agent and N informants as real processes on loopback, watched until Ctrl-C."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from hosting import lifecycle, logs
from hosting.client import Answered, Client
from parley import scene as scenes
from parley import view
from parley.children import Children
from parley.observer import Observer, SizeChange, Tail
from parley.scene import NODE, Scene
from protocol.values import Resources

NOTHING_RAN: Final = 1
WRONG_DIRECTORY: Final = 2
OVERCOMMITTED: Final = 3
POLL_S: Final = 0.5
CALM_S: Final = 4.0
"""`this-machine` must have kept its size for this long before the load starts."""
PATIENCE_S: Final = 20.0
"""On a machine that is never calm the load starts after so long, from whatever size there is."""
BURN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    vms: int
    seconds: float | None
    load: bool
    seed: int
    output: str
    quiet: bool
    directory: Path | None


@dataclass(slots=True)
class Tallies:
    """Counts per VM over all lives of the agent: each life starts at zero, so the last word of every life is added."""

    _last: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def note(self, daemon: str, vms: list[Mapping[str, Any]]) -> None:
        """Take what one life of the agent says now."""
        for vm in vms:
            self._last[daemon, vm["vm"]] = vm["counts"]

    def totals(self) -> dict[str, dict[str, Any]]:
        """The sums per VM."""
        result: dict[str, dict[str, Any]] = {}
        for (_, name), counts in self._last.items():
            total = result.setdefault(name, {"permits": 0, "resizes": 0, "refusals": Counter()})
            total["permits"] += counts["permits"]
            total["resizes"] += counts["resizes"]
            total["refusals"].update(counts["refusals"])
        for total in result.values():
            total["refusals"] = dict(total["refusals"])
        return result


class Burner:
    """Keeps every core busy once, when `this-machine` has come to rest, and finds out how it followed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._processes: list[asyncio.subprocess.Process] = []
        self._base: Resources | None = None
        self._first_seen_s: float | None = None
        self.began_s: float | None = None
        self.ended_s: float | None = None

    async def step(self, sizes: list[SizeChange], now_s: float) -> None:
        """Start the load when the VM is calm at its smallest, or after a while anyway; note when it is over."""
        if self.began_s is None:
            last = sizes[-1] if sizes else None
            if last is None:
                return
            self._first_seen_s = self._first_seen_s or now_s
            is_calm = now_s - last.at_s >= CALM_S and last.size.vcpu_milli == 1000
            if is_calm or now_s - self._first_seen_s >= PATIENCE_S:
                self._base = last.size
                for _ in range(os.cpu_count() or 1):
                    self._processes.append(
                        await asyncio.create_subprocess_exec(
                            sys.executable, "-P", "-m", "parley.burn", str(self._seconds)
                        )
                    )
                self.began_s = now_s
        elif self.ended_s is None and now_s - self.began_s >= self._seconds:
            for process in self._processes:
                await process.wait()
            self.ended_s = time.monotonic()

    async def stop(self) -> None:
        """End the load before its time."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def figures(self, sizes: list[SizeChange]) -> dict[str, float | None]:
        """Seconds from the load's start to the first growth, and from its end to the size from before."""
        grown = back = None
        if self.began_s is not None and self._base is not None:
            grown = next(
                (
                    each.at_s - self.began_s
                    for each in sizes
                    if each.at_s > self.began_s and each.size.exceeds(self._base)
                ),
                None,
            )
        if grown is not None and self.ended_s is not None:
            after = [each for each in sizes if each.at_s > self.ended_s and each.size == self._base]
            back = after[0].at_s - self.ended_s if after else None
        return {
            "growth_s": None if grown is None else round(grown, 3),
            "shrink_s": None if back is None else round(back, 3),
        }


class Demo:
    """One run of the demo."""

    def __init__(self, options: Options, scene: Scene) -> None:
        self._options = options
        self._scene = scene
        self._console = Console(stderr=options.output == "json")
        self._notes: list[str] = []
        self._shown: dict[str, tuple[str, str, str, object]] = {}
        self._vms: list[Mapping[str, Any]] = []
        self._tallies = Tallies()
        self._observer = Observer({NODE: scene.reservable})
        self._tail = Tail(scene.state / "changes.jsonl")
        self._burner = Burner(BURN_S) if options.load else None
        self._children = Children(scene.directory / "logs", self._say, logs.logger("demo"))

    async def run(self, stop: lifecycle.Stop) -> int:
        """Start everything, watch, stop everything, tell."""
        began_s = time.monotonic()
        scenes.write_files(self._scene)
        if not self._options.quiet:
            kept = "" if self._options.directory else " (removed at the end; --directory keeps them)"
            self._console.print(
                f"starting {len(self._scene.vms) + 2} programs; logs: {self._scene.directory}/logs{kept}"
            )
        for program in scenes.programs(self._scene):
            self._children.start(program)
        try:
            async with Client() as client:
                await self._watch(client, stop, began_s)
        finally:
            if self._burner is not None:
                await self._burner.stop()
            await self._children.stop("agent")
            await self._children.stop()
        self._fold()
        result = self._result(time.monotonic() - began_s)
        if self._options.output == "json":
            click.echo(json.dumps(result))
        else:
            click.echo(view.summary(result))
        if not result["vms"] and not stop.is_requested():  # who ends it at once has no reason to wonder
            click.echo(f"the agent never answered; see {self._scene.directory}/logs", err=True)
            return NOTHING_RAN
        return OVERCOMMITTED if self._observer.overcommits else 0

    async def _watch(self, client: Client, stop: lifecycle.Stop, began_s: float) -> None:
        is_live = self._console.is_terminal and not self._options.quiet
        live = Live(console=self._console, auto_refresh=False, transient=False) if is_live else None
        if live is not None:
            live.start()
        try:
            while not stop.is_requested():
                elapsed_s = time.monotonic() - began_s
                if self._options.seconds is not None and elapsed_s >= self._options.seconds:
                    return
                await self._look(client)
                if live is not None:
                    live.update(
                        view.table(
                            NODE, self._vms, self._notes, self._footer(elapsed_s), self._console.width
                        ),
                        refresh=True,
                    )
                _ = await stop.wait_for(POLL_S)
        finally:
            if live is not None:
                live.stop()

    async def _look(self, client: Client) -> None:
        url = f"http://127.0.0.1:{self._scene.agent_port}/v1/vms"
        outcome = await client.call("GET", url, deadline_s=1.0)
        if isinstance(outcome, Answered) and outcome.status == 200:
            document = json.loads(outcome.body)
            self._vms = document["vms"]
            self._tallies.note(document["daemon"], self._vms)
        self._fold()
        if self._burner is not None:
            await self._burner.step(self._sizes(), time.monotonic())
        if not self._console.is_terminal and not self._options.quiet:
            self._print_changes()

    def _fold(self) -> None:
        for line in self._tail.lines():
            self._observer.fold(line)

    def _sizes(self) -> list[SizeChange]:
        name = f"{scenes.NAMESPACE}/{scenes.THIS_MACHINE}"
        return [change for change in self._observer.sizes if change.vm == name]

    def _print_changes(self) -> None:
        for vm in self._vms:
            key = view.key(vm)
            if self._shown.get(vm["vm"]) != key:
                self._shown[vm["vm"]] = key
                self._console.print(view.line(vm), markup=False, highlight=False, soft_wrap=True)

    def _say(self, note: str) -> None:
        self._notes.append(note)
        if not self._console.is_terminal and not self._options.quiet:
            self._console.print(note, markup=False, highlight=False, soft_wrap=True)

    def _footer(self, elapsed_s: float) -> str:
        largest = self._observer.largest[NODE]
        room = self._scene.reservable
        text = (
            f"{elapsed_s:.0f} s; {NODE}: at most {largest.vcpu_milli / 1000:g} of {room.vcpu_milli / 1000:g} CPUs "
            f"could be in use so far; {len(self._observer.overcommits)} overcommits"
        )
        if self._burner is not None:
            if self._burner.began_s is None:
                text += "; the load starts soon"
            elif self._burner.ended_s is None:
                text += "; every core is kept busy"
            else:
                text += "; the load is over"
        return text

    def _result(self, seconds: float) -> dict[str, Any]:
        node = view.node_figures(
            self._observer.largest[NODE], self._scene.reservable, len(self._observer.overcommits)
        )
        return {
            "seconds": round(seconds, 1),
            "seed": self._options.seed,
            "vms": self._tallies.totals(),
            "load": None if self._burner is None else self._burner.figures(self._sizes()),
            "nodes": {NODE: node},
            "restarts": self._children.restarts,
        }


def run(options: Options) -> int:
    """Run the demo in `options.directory`, or in a temporary one that is removed unless there was trouble."""
    logs.configure("error", "console")

    def go(directory: Path) -> int:
        scene = scenes.make(directory, options.vms, options.seed)
        others = scenes.vms_of_another(scene)
        if others is not None:
            what = f"{directory} holds the VMs of another demo ({others} of them)"
            click.echo(f"{what}; give an empty directory, or the same --vms", err=True)
            return WRONG_DIRECTORY
        return lifecycle.run(lambda stop: Demo(options, scene).run(stop))

    if options.directory is not None:
        try:
            options.directory.mkdir(parents=True, exist_ok=True)
            return go(options.directory.resolve())
        except OSError as error:
            click.echo(f"cannot use {options.directory}: {error.strerror}", err=True)
            return NOTHING_RAN
    made = Path(tempfile.mkdtemp(prefix="parley-demo-"))
    code = go(made)
    if code == 0:  # after trouble the logs are worth keeping
        shutil.rmtree(made, ignore_errors=True)
    return code
