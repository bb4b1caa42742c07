"""The soak of real guests decides which load comes when, and what counts as drift, overuse, a leak, or a fault in the log."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from parley.observer import SizeChange
from protocol.values import Resources
from tests.support.vm_looks import GuestLook, VmLook
from tests.vm.soak.leaks import ALLOWED_MORE, LEAST_RSS_GROWTH_BYTES, ProcessCounts, fewest, leaks
from tests.vm.soak.log_lines import ExpectedLine, JudgedLog, judged
from tests.vm.soak.script import SLOT_BYTES, Bounds, LoadStep, load_steps
from tests.vm.soak.summary import Moves, Summary, moves_of
from tests.vm.soak.truth import LedgerLook, MemoryBackends, drift, overuse

MIB = 2**20
BOUNDS = Bounds(guests=3, most_cpus=3.5, most_slots=4, room_slots=7, base_bytes=200 * MIB, release_s=20.0)


def _steps(seed: int, count: int = 400) -> list[LoadStep]:
    return list(itertools.islice(load_steps(seed, BOUNDS), count))


def test_a_script_depends_on_its_seed_alone() -> None:
    assert _steps(7) == _steps(7) != _steps(8)


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_never_asked_for_beyond_what_the_node_has(seed: int) -> None:
    """Also counting what a guest needed up to `release_s` ago."""
    needed: list[list[tuple[float, int]]] = [[(0.0, 0)] for _ in range(BOUNDS.guests)]
    for step in _steps(seed):
        needed[step.guest].append((step.at_s, step.slots))
        total = 0
        for history in needed:
            ends = [at_s for at_s, _ in history[1:]] + [float("inf")]
            total += max(
                slots
                for (_, slots), end_s in zip(history, ends, strict=True)
                if end_s > step.at_s - BOUNDS.release_s
            )
        assert total <= BOUNDS.room_slots


@pytest.mark.parametrize("seed", range(5))
def test_a_script_moves_every_guest_both_ways_and_asks_for_more_cpus_than_there_are(seed: int) -> None:
    steps = _steps(seed)
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    for guest in range(BOUNDS.guests):
        own = [step for step in steps if step.guest == guest]
        assert {step.slots for step in own} >= {0, 1, 2}
        assert min(step.load.cpus for step in own) == 0
        assert max(step.load.cpus for step in own) > 3
        for step in own:
            most = BOUNDS.base_bytes + step.slots * SLOT_BYTES
            assert most - SLOT_BYTES - BOUNDS.base_bytes < step.load.memory_bytes < most


# ---------------------------------------------------------------- truth


def _amount(cpus: int, mebibytes: int) -> dict[str, str]:
    return Resources(cpus * 1000, mebibytes * MIB).written()


def _guest(cpus: int | None = 2, mebibytes: int = 640, plugged: int = 3) -> GuestLook:
    return GuestLook(plugged, mebibytes * MIB, cpus, None if cpus is None else mebibytes * MIB)


def _ledger(cpus: int = 2, mebibytes: int = 640, **changes: Any) -> LedgerLook:
    row = {"name": "d/a", "reserved": _amount(cpus, mebibytes)}
    node = {
        "reservable": _amount(8, 4096),
        "reserved": _amount(cpus, mebibytes),
        "rows": [row],
        "overFullBecauseOf": [],
    }
    return LedgerLook.of(node | changes, {"faults": []})


def _look(guest: GuestLook, **changes: Any) -> VmLook:
    size = _amount(2, 640)
    status = {"size": size, "target": size, "held": size, "permit": size, "machine": {"pending": None}}
    return VmLook(status | changes, {"reserved": size, "current": changes.get("current", size)}, guest)


BACKENDS = MemoryBackends(frozenset({"mem1"}), frozenset({"mem1"}))


def test_a_guest_within_what_is_reserved_is_no_fault() -> None:
    assert list(overuse(_ledger(), {"a": _guest()}, _ledger())) == []


@pytest.mark.parametrize(
    "ledgers",
    [
        pytest.param((_ledger(1, 512), _ledger()), id="the row rose meanwhile"),
        pytest.param((_ledger(), _ledger(1, 512)), id="it fell meanwhile"),
        pytest.param((_ledger(1, 640), _ledger(2, 512)), id="one resource each"),
    ],
)
def test_a_row_that_moves_around_the_look_counts_as_the_larger_one(
    ledgers: tuple[LedgerLook, LedgerLook],
) -> None:
    before, after = ledgers
    assert list(overuse(before, {"a": _guest()}, after)) == []


@pytest.mark.parametrize(
    ("guest", "ledger", "told"),
    [
        pytest.param(_guest(3), _ledger(), "a uses 3 CPU / 640Mi, and 2 CPU / 640Mi", id="more vCPUs online"),
        pytest.param(_guest(2, 768), _ledger(), "a uses 2 CPU / 768Mi", id="more memory plugged"),
        pytest.param(
            _guest(None, 768), _ledger(), "a uses 0 CPU / 768Mi", id="memory counts of a silent guest"
        ),
        pytest.param(
            _guest(), _ledger(reserved=_amount(9, 640)), "9 CPU / 640Mi is reserved of 8", id="over full"
        ),
        pytest.param(_guest(), _ledger(overFullBecauseOf=["claim"]), "because of claim", id="with a cause"),
    ],
)
def test_use_beyond_the_ledger_is_told(guest: GuestLook, ledger: LedgerLook, told: str) -> None:
    assert any(told in fault for fault in overuse(ledger, {"a": guest}, ledger))


def test_the_audit_of_the_ledger_counts() -> None:
    node = {"reservable": _amount(8, 4096), "reserved": _amount(0, 0), "rows": [], "overFullBecauseOf": []}
    ledger = LedgerLook.of(node, {"faults": ["a sum is wrong"]})
    assert next(overuse(ledger, {}, ledger)) == "ledger: the audit says: a sum is wrong"


def test_agreement_is_no_drift() -> None:
    assert list(drift("a", _look(_guest()), BACKENDS)) == []


@pytest.mark.parametrize(
    ("look", "backends", "told"),
    [
        pytest.param(_look(_guest(3)), BACKENDS, "but the agent's size is", id="another size"),
        pytest.param(_look(_guest(None, plugged=2)), BACKENDS, "its informant did not answer", id="silent"),
        pytest.param(
            _look(_guest(), current=_amount(1, 640)), BACKENDS, "its permit is", id="a floor is left"
        ),
        pytest.param(
            _look(_guest(), permit=_amount(3, 640)), BACKENDS, "the agent's permit is", id="a permit not held"
        ),
        pytest.param(
            _look(_guest(), machine={"pending": "1 slot is being ejected"}), BACKENDS, "ejected", id="pending"
        ),
        pytest.param(
            _look(_guest()),
            MemoryBackends(frozenset({"mem1", "mem2"}), frozenset({"mem1"})),
            "no device uses: mem2",
            id="a memory back end is left over",
        ),
    ],
)
def test_what_does_not_agree_is_drift(look: VmLook, backends: MemoryBackends, told: str) -> None:
    assert any(told in fault for fault in drift("a", look, backends))


# ---------------------------------------------------------------- leaks


def _counts(descriptors: int, resident_mib: int) -> ProcessCounts:
    return ProcessCounts({"descriptors": descriptors, "threads": 3}, resident_mib * MIB)


def test_what_is_there_for_a_moment_is_no_leak() -> None:
    least = fewest([_counts(12, 60), _counts(11, 70)])
    assert least == _counts(11, 60)
    assert list(leaks("agent", _counts(11, 60), least)) == []


def test_more_than_a_few_descriptors_more_are_a_leak_and_so_is_one_thread() -> None:
    few = ALLOWED_MORE["descriptors"]
    assert list(leaks("agent", _counts(11, 60), _counts(11 + few, 60))) == []
    assert list(leaks("agent", _counts(11, 60), _counts(12 + few, 60))) == [
        f"agent has {12 + few} descriptors, and had 11 at the beginning"
    ]
    more = ProcessCounts({"descriptors": 11, "threads": 4}, 60 * MIB)
    assert list(leaks("agent", _counts(11, 60), more)) == ["agent has 4 threads, and had 3 at the beginning"]


@pytest.mark.parametrize(
    ("grown_mib", "count"), [(LEAST_RSS_GROWTH_BYTES // MIB, 0), (LEAST_RSS_GROWTH_BYTES // MIB + 1, 1)]
)
def test_memory_may_grow_by_a_bounded_amount(grown_mib: int, count: int) -> None:
    assert len(list(leaks("agent", _counts(11, 60), _counts(11, 60 + grown_mib)))) == count


# ---------------------------------------------------------------- summary


def _change(vm: str, cpus: int, mebibytes: int) -> SizeChange:
    return SizeChange(0.0, vm, Resources(cpus * 1000, mebibytes * MIB))


def test_moves_are_counted_by_resource_and_direction_after_the_first_size() -> None:
    changes = [
        _change("a", 1, 512),
        _change("b", 1, 512),
        _change("a", 2, 640),
        _change("a", 2, 640),
        _change("b", 1, 768),
        _change("a", 1, 640),
        _change("a", 1, 512),
    ]
    moves = moves_of(changes)
    assert moves == Moves(cpu_up=1, cpu_down=1, memory_up=2, memory_down=1)
    assert moves.total == 5


SUMMARY = Summary(
    seed=7,
    seconds=61.2,
    is_whole=True,
    guests=3,
    room=Resources(7000, 2560 * MIB),
    largest=Resources(6000, 2048 * MIB),
    looks=100,
    silent_looks=2,
    calm_points=3,
    loads=40,
    expected_lines=3,
    moves=Moves(4, 3, 2, 1),
    before={"agent": _counts(11, 60)},
    after={"agent": _counts(11, 64)},
    faults=(),
)


def test_a_summary_is_told_in_words_and_as_a_document() -> None:
    told = "\n".join(SUMMARY.sentences())
    assert "3 guests ran for 61 s under 40 random loads (seed 7)." in told
    assert "moved 10 times: vCPUs 4 times up and 3 down, memory 2 up and 1 down" in told
    assert "at most 6 CPU / 2Gi together; the node has 7 CPU / 2560Mi" in told
    assert "agent 11 and 11 descriptors, 3 and 3 threads, 60 and 64 MiB resident" in told
    assert "3 lines of the logs are such as are expected" in told
    assert told.endswith("Nothing was wrong.")
    document = json.loads(json.dumps(SUMMARY.document()))
    assert (document["seed"], document["resizes"], document["faults"]) == (7, 10, 0)
    assert (document["agent_resident_mib_before"], document["agent_resident_mib_after"]) == (60, 64)


def test_a_fault_is_told_and_so_is_an_end_before_the_time() -> None:
    told = "\n".join(replace(SUMMARY, is_whole=False).with_fault("it rained").sentences())
    assert "(seed 7), and was ended before its time." in told
    assert "Fault: it rained" in told
    assert told.endswith("Faults: 1.")


# ---------------------------------------------------------------- logs


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        pytest.param(json.dumps({"level": "info", "event": "permit"}), False, id="a decision"),
        pytest.param("", False, id="nothing"),
        pytest.param(json.dumps({"level": "warning", "event": "trouble"}), True, id="a warning"),
        pytest.param(json.dumps({"level": "info", "event": "x", "exception": []}), True, id="an exception"),
        pytest.param("[   12.1] BUG: scheduling while atomic", True, id="the kernel"),
        pytest.param("[1, 2]", True, id="JSON that is no line of ours"),
        pytest.param("parley: python3 ended with code 137", True, id="init"),
    ],
)
def test_warnings_and_foreign_lines_are_faults(line: str, is_fault: bool) -> None:
    found = judged("guest", [line], ())
    assert (bool(found.faults), found.expected) == (is_fault, 0)


def test_an_expected_line_is_no_fault_where_it_is_expected() -> None:
    expected = [ExpectedLine("guest", "^SeaBIOS", "the firmware")]
    assert judged("guest", ["SeaBIOS (version 1.16)"], expected) == JudgedLog((), 1)
    assert judged("qemu", ["SeaBIOS (version 1.16)"], expected) == JudgedLog(("SeaBIOS (version 1.16)",), 0)
