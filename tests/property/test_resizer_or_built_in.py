"""Whatever comes in which order: commands of the plugin and of the built-in back end are never under way at the same time."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.model import Vm
from agent.core.ports import BackendError, Capabilities, FencedOffError, Fencing
from agent.node.plugins.types.resizer import ResizerAnewError, ResizerAwayError, ResizerFailedError
from agent.node.plugins.types.resizer_or_built_in import ResizerOrBuiltIn, Side, _VmSides
from protocol.values import Observation, Resources
from tests.support.amounts import cu
from tests.support.virtual_time import VirtualLoop, now_s
from tests.unit.agent.driver import VM

CALL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command that was sent at a moment, and may be accepted until another one. `life` of the plugin; 0 for the built-in side."""

    side: Side
    life: int
    sent_s: float
    until_s: float


@dataclass(slots=True)
class Plugin:
    """The plugin as the agent sees it. `refuses`: it shows VMs, and fails to resize them."""

    is_registered: bool = True
    hangs: bool = False
    refuses: bool = False
    life: int = 1


@dataclass(slots=True)
class SideBackend:
    """One side: commands travel without their sender for as long as `command_s` allows, until a fence makes them void."""

    side: Side
    command_s: float
    rng: random.Random
    sent: list[Command]
    plugin: Plugin | None = None
    generation: int = 0
    fenced_by: int = 0
    open: list[int] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.command_s)

    @property
    def life(self) -> int:
        return 0 if self.plugin is None else self.plugin.life

    async def _reach(self) -> None:
        if self.plugin is not None:
            if not self.plugin.is_registered:
                raise ResizerAwayError("away")
            if self.plugin.hangs:
                await asyncio.sleep(CALL_S)
                raise ResizerFailedError("no answer")
        await asyncio.sleep(self.rng.random())

    async def fence(self, vm: Vm) -> Fencing:
        await self._reach()
        self.generation += 1
        self.fenced_by = self.life
        for index in self.open:
            command = self.sent[index]
            if command.life == self.life:  # a life knows nothing of what another one has under way
                self.sent[index] = replace(command, until_s=min(command.until_s, now_s()))
        self.open.clear()
        return Fencing(self.generation)

    async def observe(self, vm: Vm) -> Observation:
        began_s = now_s()
        await self._reach()
        return Observation(cu(2), cu(2), began_s)

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        if fencing.generation != self.generation:
            raise FencedOffError("fenced off")
        if self.fenced_by != self.life:
            raise ResizerAnewError("fenced by another life")
        is_lost = self.plugin is not None and self.plugin.hangs
        self.open.append(len(self.sent))
        travels_s = self.rng.random() * self.command_s
        self.sent.append(Command(self.side, self.life, now_s(), now_s() + travels_s))
        if self.plugin is not None and self.plugin.refuses:
            raise ResizerFailedError("UNKNOWN: OSError")
        if is_lost:
            await asyncio.sleep(CALL_S)
            raise ResizerFailedError("no answer; it may be accepted")
        await asyncio.sleep(self.rng.random())


class World:
    """A runner's life over both sides: one call of each kind at a time, each of which may be given up."""

    def __init__(self, seed: int, kind: type[ResizerOrBuiltIn]) -> None:
        rng = random.Random(seed)
        self.plugin, self.sent = Plugin(), list[Command]()
        self.sides = kind(
            SideBackend(Side.PLUGIN, 4.0, rng, self.sent, self.plugin),
            SideBackend(Side.BUILT_IN, 3.0, rng, self.sent),
            lambda: self.plugin.is_registered,
            rng=rng,
            clock=now_s,
        )
        self.fencing: Fencing | None = None

    async def act(self, action: str, gives_up_s: float) -> None:
        match action:
            case "registers" | "goes":
                self.plugin.is_registered = action == "registers"
            case "hangs" | "recovers":
                self.plugin.hangs = action == "hangs"
            case "refuses" | "mends":
                self.plugin.refuses = action == "refuses"
            case "restarts":
                self.plugin.life += 1
            case "waits":
                await asyncio.sleep(gives_up_s)
            case _:
                try:
                    async with asyncio.timeout(gives_up_s):
                        await self._call(action)
                except (BackendError, TimeoutError):
                    pass

    async def _call(self, action: str) -> None:
        if action == "fence" or self.fencing is None:
            self.fencing = None
            self.fencing = await self.sides.fence(VM)
        elif action == "observe":
            await self.sides.observe(VM)
        else:
            await self.sides.resize(VM, cu(3), self.fencing, seen=cu(2), not_after_s=now_s() + 5)


def overlaps(sent: list[Command]) -> Iterator[tuple[Command, Command]]:
    """The commands of one side, or life of the plugin, that might still be accepted when another one sent a command."""
    for index, later in enumerate(sent):
        for earlier in sent[:index]:
            if earlier.life != later.life and earlier.until_s > later.sent_s:
                yield earlier, later


ACTIONS: Final = (
    "registers",
    "goes",
    "hangs",
    "recovers",
    "refuses",
    "mends",
    "restarts",
    "waits",
    "fence",
    "observe",
    "resize",
    "resize",
    "resize",
)
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from((0.3, 1.0, 5.0, 30.0))), min_size=4, max_size=40
)


def walk(steps: list[tuple[str, float]], seed: int, kind: type[ResizerOrBuiltIn]) -> list[Command]:
    async def walked() -> list[Command]:
        world = World(seed, kind)
        for action, gives_up_s in steps:
            await world.act(action, gives_up_s)
        await asyncio.sleep(60)
        return world.sent

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(walked())


@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_commands_of_both_sides_are_never_under_way_at_the_same_time(
    steps: list[tuple[str, float]], seed: int
) -> None:
    assert list(overlaps(walk(steps, seed, ResizerOrBuiltIn))) == []


class Hasty(ResizerOrBuiltIn):
    """Does not wait out the side that is left."""

    async def _until_quiet(self, sides: _VmSides, side: Side) -> None:
        return


def test_the_law_catches_a_change_that_does_not_wait() -> None:
    steps = [("resize", 5.0), ("resize", 5.0), ("goes", 1.0), ("resize", 30.0)]
    assert any(list(overlaps(walk(steps, seed, Hasty))) for seed in range(20))
    assert all(walk(steps, seed, ResizerOrBuiltIn)[-1].side is Side.BUILT_IN for seed in range(5))


@pytest.mark.parametrize("again", ["fence", "resize"])
def test_a_plugin_that_was_started_anew_commands_when_its_predecessor_cannot_any_more(again: str) -> None:
    """The plugin does not know what its predecessor has under way, and its fence does not wait for that."""
    lost = [("resize", 30.0), ("hangs", 0.0), ("resize", 0.3), ("recovers", 0.0), ("restarts", 0.0)]
    steps = [*lost, (again, 30.0), ("resize", 30.0), ("resize", 30.0)]
    walks = [walk(steps, seed, ResizerOrBuiltIn) for seed in range(20)]
    assert {tuple(each.life for each in sent)[:2] for sent in walks} == {(1, 2)}
    assert [list(overlaps(sent)) for sent in walks] == [[]] * 20


def test_a_plugin_that_hangs_for_longer_than_its_callers_wait_is_left_as_well() -> None:
    steps = [("resize", 30.0), ("hangs", 1.0), *[("observe", 1.0)] * 3, ("resize", 30.0)]
    assert [each.side for each in walk(steps, 1, ResizerOrBuiltIn)] == [Side.BUILT_IN]


@pytest.mark.parametrize(
    ("steps", "sides"),
    [
        (["resize", "resize"], "P"),
        (["goes", "resize", "resize"], "B"),
        (["resize", "resize", "goes", "resize"], "PB"),
        (["goes", "resize", "resize", "registers", "resize"], "BP"),
        (["resize", "resize", "hangs", "observe", "observe", "observe", "resize"], "PB"),
        (
            [
                "resize",
                "resize",
                "hangs",
                *["observe"] * 3,
                "resize",
                "recovers",
                "waits",
                "observe",
                "resize",
            ],
            "PBP",
        ),
        (["resize", "refuses", *["resize", "observe"] * 4, "observe", "resize"], "PPPBB"),
        (
            [
                "refuses",
                *["resize", "observe"] * 5,
                "mends",
                "waits",
                "observe",
                "resize",
                "observe",
                "resize",
            ],
            "PPPBPP",
        ),
        (["resize", "resize", "restarts", "resize", "resize", "resize"], "PPP"),
    ],
    ids=[
        "registered",
        "away",
        "it goes",
        "it comes",
        "it hangs",
        "it recovers",
        "it cannot resize",
        "it can again",
        "it is started anew",
    ],
)
def test_the_side_that_resizes(steps: list[str], sides: str) -> None:
    sent = walk([(step, 30.0) for step in steps], 1, ResizerOrBuiltIn)
    assert "".join("P" if each.side is Side.PLUGIN else "B" for each in sent) == sides
