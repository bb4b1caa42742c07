"""The journal: replaying it through the same core gives the same decisions, from the start or from a snapshot."""

import json
import random
from uuid import UUID

import pytest

from protocol import codec, wire
from protocol.values import Resources
from scheduler.core import events, journal
from scheduler.core.core import Core
from tests.unit.scheduler_core.core_worlds import AGENT, EVERYWHERE, HERE, NEXT_AGENT, World, cu, pod

SEEDS = range(12)


def whole_state(core: Core) -> str:
    """The first line of a journal that begins now."""
    return journal.snapshot_line(journal.snapshot_of(core))


class RecordingWorld(World):
    """A world that journals all that it does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(cu(12), config=EVERYWHERE)

    def apply(self, event: events.Input) -> tuple[events.Output, ...]:
        """One input, recorded with what came of it."""
        outputs = super().apply(event)
        if isinstance(event, events.RequestArrived):
            self.lines.append(journal.request_line(event, codec.encode(event.request), outputs))
        else:
            self.lines.append(journal.input_line(event, outputs))
        return outputs


def _live(world: RecordingWorld, dice: random.Random, steps: int) -> None:
    """A lively cluster: both kinds of callers, new lives, reads, time, VMs that come and go."""
    now_s = 0.0
    for step in range(steps):
        now_s += dice.choice((0.0, 0.5, 3.0, 20.0))
        name = dice.choice(("a", "b", "c"))
        known = world.core.vms.find(pod(name))
        if known is None:
            world.vm(name, dice.choice((cu(1), cu(2), None)), most=cu(4), is_new=dice.random() < 0.5)
            continue
        match dice.randrange(8):
            case 0 | 1 | 2 | 3:
                world.send(
                    world.request(
                        name,
                        cu(dice.randint(1, 4)),
                        claim=dice.choice((None, cu(1), cu(2))),
                        agent=dice.choice((AGENT, NEXT_AGENT)),
                        started=dice.choice((1000, 1000 + step)),
                        names=dice.choice((HERE, None, UUID(int=99))),
                    ),
                    at=now_s,
                )
            case 4:
                world.published(
                    name, wire.SlotResources(dice.randint(1, 4), 2), at=now_s, use=dice.choice((cu(1), cu(2)))
                )
            case 5:
                world.tick(now_s)
            case 6:
                world.read(name, cu(dice.randint(1, 3)), at=now_s)
            case _:
                world.apply(events.VmGone(pod(name), known.spec.uid, now_s))


def _replay(lines: list[str]) -> journal.Replay:
    first = journal.read_line(lines[0])
    assert isinstance(first, journal.Snapshot)
    running = journal.Replay(first)
    for line in lines[1:]:
        step = journal.read_line(line)
        assert isinstance(step, journal.Step)
        assert running.take(step) is None
    return running


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_gives_the_same_decisions_and_the_same_ledger(seed: int) -> None:
    world = RecordingWorld()
    begin = whole_state(World(cu(12), config=EVERYWHERE).core)
    world.lines = [begin]  # the empty world has its node already
    _live(world, random.Random(seed), 150)
    running = _replay(world.lines)
    assert running.steps == len(world.lines) - 1
    assert whole_state(running.core) == whole_state(world.core)
    assert running.core.audit() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_may_begin_at_a_snapshot_in_mid_life(seed: int) -> None:
    world, dice = RecordingWorld(), random.Random(seed)
    _live(world, dice, 80)
    world.lines = [whole_state(world.core)]
    _live(world, dice, 80)
    running = _replay(world.lines)
    assert whole_state(running.core) == whole_state(world.core)


def test_a_snapshot_does_not_change_with_the_core() -> None:
    world = World(cu(12))
    world.vm("a", cu(1), most=cu(4))
    taken = journal.snapshot_of(world.core)
    before = journal.restore(taken)
    world.permit(world.request("a", cu(3), claim=cu(1)))
    assert whole_state(journal.restore(taken)) == whole_state(before)
    assert whole_state(world.core) != whole_state(before)


def test_another_decision_is_found_and_told() -> None:
    world = RecordingWorld()
    world.vm("a", cu(1), most=cu(4))
    world.lines = [whole_state(world.core)]
    world.permit(world.request("a", cu(3), claim=cu(1)))
    first, step = (journal.read_line(line) for line in world.lines)
    assert isinstance(first, journal.Snapshot)
    assert isinstance(step, journal.Step)
    told = json.loads(json.dumps(step.outputs).replace(r"\"cpu\": \"3\"", r"\"cpu\": \"4\""))
    told[0]["permit"] = told[0]["permit"].replace('"vCPUs":3', '"vCPUs":4')
    difference = journal.Replay(first).take(journal.Step(step.event, told))
    assert difference is not None
    assert difference.number == 1
    assert difference.recorded == told
    assert '"vCPUs":3' in difference.replayed[0]["permit"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "not JSON: Expecting value (character 1)"),
        ("{", "not JSON: Expecting property name enclosed in double quotes (character 2)"),
        ("[]", "it is no JSON object"),
        ("null", "it is no JSON object"),
        ("{}", "there is no `input` in it"),
        ('{"input":{"type":"Path"},"outputs":[]}', "no kind of value is called `Path`"),
        ('{"input":{"type":"ClockTicked"}}', "there is no `outputs` in it"),
        ('{"input":{"type":[]},"outputs":[]}', "a value in it is not of the kind that belongs there"),
        ('{"request":[],"outputs":[]}', "a value in it is not of the kind that belongs there"),
        ('{"request":{"ticket":1,"now_s":0,"look":null,"body":"nonsense"},"outputs":[]}', "JSON"),
        ('{"snapshot":{"format":99}}', "the journal has format 99"),
        ('{"snapshot":{"format":1}}', "the journal has format 1"),
    ],
)
def test_what_is_no_line_of_a_journal_is_said_in_words(line: str, words: str) -> None:
    with pytest.raises(journal.JournalError) as caught:
        journal.read_line(line)
    assert words in str(caught.value)
    assert "Error" not in str(caught.value)


def test_a_gap_says_how_much_was_lost() -> None:
    assert journal.read_line(journal.gap_line(7)) == journal.Gap(7)


def test_huge_amounts_are_kept_exactly() -> None:
    """Amounts beyond 2^53 are kept exactly: JSON integers, never floats."""
    world = RecordingWorld()
    world.lines = [whole_state(world.core)]
    huge = Resources(2**53, 2**63 - 1)
    world.node("huge", huge)
    running = _replay(world.lines)
    account = running.core.ledger.node("huge")
    assert account is not None
    assert account.capacity.reservable == huge
