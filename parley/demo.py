"""`parley demo`: a scheduler, an agent and N informants as real processes on loopback, watched until Ctrl-C."""

import asyncio
import errno
import json
import os
import random
import shutil
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live

from hosting import lifecycle, logs
from hosting.client import Answered, HttpClient
from hosting.files import locked
from hosting.supervisor import Supervisor
from parley import layout, view
from parley import scene as scenes
from parley.children import Burner, Children, Maximum
from parley.observer import Comparison, Observer, SizeChange, Tail, moves
from parley.recent import Recent
from parley.scene import NO_LIVE_PAGE, NODE, Scene, Stage, StageError
from parley.top import drawing
from parley.vm_choice import QemuGuests
from protocol.agent_pages import AgentVms, CountsShown, VmInShort, read
from protocol.texts import counted

NOTHING_RAN: Final = 1
WRONG_DIRECTORY: Final = 2
OVERCOMMITTED: Final = 3
POLL_S: Final = 0.5
EVIDENCE_LOST: Final = 4
BURN_S: Final = 10.0
START_S: Final = 30.0
"""How long the agent has for its first answer, if the demo is to end by itself."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The command line."""

    vms: int | QemuGuests
    seconds: float | None
    load: bool
    seed: int
    output: str
    quiet: bool
    directory: Path | None
    picture: Path | None = None
    """The file to which the last live view is written as an SVG."""
    cluster: str | None = None
    """`kube` or `node`: on a control plane of Kubernetes, with that kind of node."""


@dataclass(slots=True)
class Tallies:
    """Counts per VM over all lives of the agent, and of the VM: each starts at zero, so the last counts of every life are added."""

    _last: dict[tuple[str, str, str], CountsShown] = field(default_factory=dict)

    def note(self, daemon: str, vms: Sequence[VmInShort]) -> None:
        """Take the counts that one life of the agent reports now."""
        for vm in vms:
            self._last[daemon, vm.vm, vm.agent_id] = vm.counts

    def totals(self) -> dict[str, dict[str, Any]]:
        result: dict[str, dict[str, Any]] = {}
        for (_, name, _), counts in self._last.items():
            nothing = {"permits": 0, "resizes": 0, "restarts": 0, "ends": Counter(), "refusals": Counter()}
            total = result.setdefault(name, nothing)
            for each in ("permits", "resizes", "restarts"):
                total[each] += getattr(counts, each)
            for each in ("ends", "refusals"):
                total[each].update(getattr(counts, each))
        for total in result.values():
            total |= {each: dict(total[each]) for each in ("ends", "refusals")}
        return result


class OutputError(Exception):
    """The output of the demo cannot be written."""


@contextmanager
def _writing() -> Iterator[None]:
    """Makes `OutputError` of a fault of the output (a full disk, a reader that has gone); the demo's own files fail as they do."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror}") from None


_BURN: Final = """
import sys, time
until_s = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until_s:
    sum(range(10_000))
"""
"""Keeps one core busy."""


async def _burn() -> list[asyncio.subprocess.Process]:
    command = (sys.executable, "-c", _BURN, str(BURN_S))
    return [await asyncio.create_subprocess_exec(*command) for _ in range(os.cpu_count() or 1)]


def _stage_of(scene: Scene, *, load: bool) -> Stage:
    """The demo without a cluster: the scheduler's cluster is a file, and resizes are simulated. Writes the programs' files."""
    scenes.write_files(scene)
    return Stage(
        directory=scene.directory,
        node=NODE,
        reservable=scene.reservable,
        agent_port=scene.agent_port,
        scheduler_port=scene.scheduler_port,
        programs=scenes.programs(scene),
        steps={f"{scenes.NAMESPACE}/{vm.name}": vm.unit.step for vm in scene.vms},
        burner=_burner_of(scene) if load else None,
    )


def _burner_of(scene: Scene) -> Burner:
    (vm,) = (each for each in scene.vms if each.name == scenes.THIS_MACHINE)
    return Burner(
        BURN_S,
        Maximum(vm.max.vcpu_milli // 1000, vm.most.vcpu_milli // 1000),
        _burn,
        lambda: scenes.write_files(scenes.raised(scene)),
    )


class Demo:
    def __init__(self, options: DemoOptions, stage: Stage) -> None:
        self._options = options
        self._stage = stage
        self._console = Console(stderr=options.output == "json")
        self._unprinted: list[str] = []
        """Notes to print. The tasks that run the programs add them; a fault of the output must not end these tasks."""
        self._shown: dict[str, tuple[object, ...]] = {}
        self._vms: tuple[VmInShort, ...] = ()
        self._answered_s: float | None = None
        """When the agent answered first."""
        self._tallies = Tallies()
        self._recent = Recent(stage.node, stage.reservable, stage.agent_port, stage.scheduler_port)
        self._observer = Observer({stage.node: stage.reservable})
        self._comparison = Comparison(stage.reservable, stage.steps)
        self._tail = Tail(stage.state / "changes.jsonl")
        self._burner = stage.burner
        log = logs.logger("demo")
        self._beside = Supervisor(log, random.Random())
        self._children = Children(stage.directory / "logs", self._say, log)

    async def run(self, stop: lifecycle.Stop) -> int:
        began_s = time.monotonic()
        if not self._options.quiet:
            kept = "" if self._options.directory else " (removed at the end; --directory keeps them)"
            self._print(
                f"starting {counted(len(self._stage.programs), 'program')}; logs: {self._stage.directory}/logs{kept}"
            )
            page = self._stage.page
            self._print(f"live page: {page}" if page is not None else NO_LIVE_PAGE)
            self._print(f"why a VM has its size: {self._stage.explanation}")
        for program in self._stage.programs:
            self._children.start(program)
        self._beside.start("stage", lambda: self._stage.beside(self._say))
        try:
            async with HttpClient() as client:
                await self._watch(client, stop, began_s)
            self._draw(self._elapsed_s(began_s))
        finally:
            await self._beside.stop()
            if self._burner is not None:
                await self._burner.stop()
            await self._children.stop("agent")
            await self._children.stop()
        self._fold()
        self._print_notes()
        result = self._result(self._elapsed_s(began_s))
        with _writing():
            is_json = self._options.output == "json"
            click.echo(json.dumps(result) if is_json else self._folded(view.summary(result)))
        if not result["vms"] and not stop.is_requested():  # with Ctrl-C at once there is no reason to wonder
            fault = self._children.write_fault()
            line = self._children.last_line("agent") or "nothing"
            unanswered = f"the agent never answered; its last line: {line}; see {self._stage.directory}/logs"
            click.echo(fault or unanswered, err=True)
            return NOTHING_RAN
        if self._observer.overcommits:
            return OVERCOMMITTED
        return EVIDENCE_LOST if self._tail.is_broken else 0

    def _elapsed_s(self, began_s: float) -> float:
        """How long the demo has been running: since the agent's first answer, or since its start until there is one."""
        return time.monotonic() - (began_s if self._answered_s is None else self._answered_s)

    def _is_over(self, elapsed_s: float) -> bool:
        if self._options.seconds is None:
            return False
        return elapsed_s >= (START_S if self._answered_s is None else self._options.seconds)

    def _folded(self, summary: str) -> str:
        """The summary for people, in lines that fit their terminal."""
        if not self._console.is_terminal:
            return summary
        return "\n".join(
            textwrap.fill(
                each,
                self._console.width,
                subsequent_indent=" " * (len(each) - len(each.lstrip()) + 4),
                break_on_hyphens=False,
            )
            for each in summary.split("\n")
        )

    async def _watch(self, client: HttpClient, stop: lifecycle.Stop, began_s: float) -> None:
        is_live = self._console.is_terminal and not self._options.quiet
        live = Live(console=self._console, auto_refresh=False, transient=False) if is_live else None
        if live is not None:
            live.start()
        try:
            while not stop.is_requested():
                if self._is_over(self._elapsed_s(began_s)):
                    break
                await self._look(client)
                if live is not None or self._options.picture is not None:
                    await self._recent.ask(client, time.monotonic())
                if live is not None:
                    with _writing():
                        live.update(self._screen(self._elapsed_s(began_s)), refresh=True)
                _ = await stop.wait_for(POLL_S)
        finally:
            if live is not None:
                live.stop()

    async def _look(self, client: HttpClient) -> None:
        url = f"http://127.0.0.1:{self._stage.agent_port}/v1/vms"
        outcome = await client.call("GET", url, deadline_s=1.0)
        if isinstance(outcome, Answered) and outcome.status == 200:
            document = read(json.loads(outcome.body), AgentVms)
            self._answered_s = self._answered_s or time.monotonic()
            self._vms = document.vms
            self._recent.heard(document, time.monotonic())
            self._tallies.note(document.daemon, self._vms)
        elif self._answered_s is not None:
            self._recent.missed("does not answer", time.monotonic())
        self._fold()
        if self._burner is not None:
            await self._burner.step(self._sizes(), time.monotonic())
        self._print_notes()
        if not self._console.is_terminal and not self._options.quiet:
            self._print_changes()

    def _fold(self) -> None:
        for line in self._tail.lines():
            self._observer.fold(line)
            self._comparison.note(float(line["at_s"]), self._observer.uses(self._stage.node))

    def _sizes(self) -> list[SizeChange]:
        name = f"{scenes.NAMESPACE}/{scenes.THIS_MACHINE}"
        return [change for change in self._observer.sizes if change.vm == name]

    def _print_changes(self) -> None:
        for vm in self._vms:
            key = view.key(vm)
            if self._shown.get(vm.vm) != key:
                self._shown[vm.vm] = key
                self._print(view.line(vm))

    def _say(self, program: str, note: str) -> None:
        self._recent.note(program, note, time.monotonic())
        if not self._console.is_terminal and not self._options.quiet:
            self._unprinted.append(note)

    def _print_notes(self) -> None:
        while self._unprinted:
            self._print(self._unprinted.pop(0))

    def _print(self, text: str) -> None:
        """A line for people. Raises `OutputError`."""
        with _writing():
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _screen(self, elapsed_s: float) -> Group:
        size = self._console.size
        is_ascii = not drawing.can_draw(self._console.encoding)
        return self._view(elapsed_s, size.width, size.height, is_ascii=is_ascii)

    def _view(self, elapsed_s: float, width: int, height: int, *, is_ascii: bool = False) -> Group:
        recent = self._recent.recent(time.monotonic())
        footer = self._footer(elapsed_s)
        return layout.screen(self._stage.node, self._vms, footer, width, height, recent, is_ascii=is_ascii)

    def _draw(self, elapsed_s: float) -> None:
        """Write the picture, if one is wanted. Raises `OutputError`."""
        if self._options.picture is not None:
            drawn = view.svg(self._view(elapsed_s, view.WIDTH, view.HEIGHT), "parley demo")
            with _writing():
                self._options.picture.write_text(drawn, encoding="utf-8")

    def _footer(self, elapsed_s: float) -> list[str]:
        """How long the demo runs, the largest use of the node, the state of the load, where the live page is, and how to ask why."""
        largest = self._observer.largest[self._stage.node]
        reservable = self._stage.reservable
        verdict = counted(len(self._observer.overcommits), "overcommit")
        if self._tail.is_broken:
            verdict = "the change log was removed or cut: what came after it is not known"
        text = (
            f"{elapsed_s:.0f} s (Ctrl-C ends); {self._stage.node}: at most {largest.vcpu_milli / 1000:g} of "
            f"{counted(reservable.vcpu_milli / 1000, 'CPU')} and {largest.memory_bytes / scenes.GIB:g} of "
            f"{reservable.memory_bytes / scenes.GIB:g} GiB could be in use so far; {verdict}"
        )
        if self._burner is not None:
            text += f"; {self._burner.state(time.monotonic())}"
        if self._stage.page is not None:
            text += f"; live page: {self._stage.page}"
        return [text, f"why a VM has its size: {self._stage.explanation}"]

    def _result(self, seconds: float) -> dict[str, Any]:
        node = view.node_figures(
            self._observer.largest[self._stage.node],
            self._stage.reservable,
            len(self._observer.overcommits),
            "lost" if self._tail.is_broken else "whole" if self._observer.lines else "none",
        )
        name = f"{scenes.NAMESPACE}/{scenes.THIS_MACHINE}"
        this_machine = next((vm for vm in self._vms if vm.vm == name), None)
        return {
            "seconds": round(seconds, 1),
            "seed": self._options.seed,
            "vms": self._tallies.totals(),
            "load": None if self._burner is None else self._burner.figures(self._sizes(), this_machine),
            "nodes": {self._stage.node: node},
            "apart": self._comparison.figures(),
            "mismatches": {vm.vm: vm.mismatch for vm in self._vms if vm.mismatch},
            "sizes": moves(self._observer.sizes),
            "machines": {
                vm.vm: msgspec.to_builtins(vm.machine) for vm in self._vms if vm.machine is not None
            },
            "restarts": {**self._children.restarts, **self._stage.restarts},
        }


def run(options: DemoOptions) -> int:
    """Run the demo in `options.directory`, or in a temporary one that is removed unless there was trouble."""
    logs.configure("error", "console")
    try:
        if options.directory is None:
            return _run_in_a_new_directory(options)
        options.directory.mkdir(parents=True, exist_ok=True)
        return _run_in(options.directory.resolve(), options)
    except OutputError as error:
        return _output_lost(error)
    except StageError as error:
        click.echo(str(error), err=True)
        return NOTHING_RAN
    except OSError as error:
        click.echo(f"cannot use {options.directory or tempfile.gettempdir()}: {error.strerror}", err=True)
        return NOTHING_RAN


def _run_in(directory: Path, options: DemoOptions) -> int:
    """Run the demo in a directory that exists; refused if that is in use, or has the VMs of another demo."""
    try:
        lock = locked(directory, "in use")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        click.echo(
            f"another demo is running in {directory}; end that one, or give another directory", err=True
        )
        return WRONG_DIRECTORY
    with lock:
        if isinstance(options.vms, QemuGuests):
            return _run_with_guests(directory, options, options.vms.count)
        if options.cluster is not None:
            from parley import cluster_stage  # noqa: PLC0415 - only this demo needs clusters

            with cluster_stage.staged(options.cluster, directory, options.vms, options.seed) as stage:
                return lifecycle.run(lambda stop: Demo(options, stage).run(stop))
        scene = scenes.make(directory, options.vms, options.seed, time.monotonic())
        others = scenes.vms_of_another(scene)
        if others is not None:
            what = f"{directory} holds the VMs of another demo ({others} of them)"
            click.echo(f"{what}; give an empty directory, or the same --vms", err=True)
            return WRONG_DIRECTORY
        stage = _stage_of(scene, load=options.load)
        return lifecycle.run(lambda stop: Demo(options, stage).run(stop))


def _run_with_guests(directory: Path, options: DemoOptions, guests: int) -> int:
    """Run the demo with real guests. Raises `StageError`."""
    from parley import vm_stage  # noqa: PLC0415 - the client library of QEMU is an extra

    def say(line: str) -> None:
        if not options.quiet:
            with _writing():
                click.echo(line, err=options.output == "json")

    image = vm_stage.image(say)

    async def run_until(stop: lifecycle.Stop) -> int:
        async with vm_stage.staged(image, directory, guests, stop, say) as stage:
            return 0 if stage is None else await Demo(options, stage).run(stop)

    return lifecycle.run(run_until)


def _run_in_a_new_directory(options: DemoOptions) -> int:
    made = Path(tempfile.mkdtemp(prefix="parley-demo-"))
    try:
        code = _run_in(made, options)
    except BaseException:  # also Ctrl-C, while a stage is being set
        shutil.rmtree(made, ignore_errors=True)
        raise
    if code == 0:
        shutil.rmtree(made, ignore_errors=True)
    else:  # after trouble the logs are worth keeping
        click.echo(f"logs: {made}/logs (kept)", err=True)
    return code


def _output_lost(error: OutputError) -> int:
    """Report the fault, as far as that can be written, and drop buffered output: the interpreter would try to write it again."""
    with suppress(OSError):
        click.echo(str(error), err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return NOTHING_RAN
