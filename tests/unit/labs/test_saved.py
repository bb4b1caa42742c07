"""Saved states in the cache."""

import os
from pathlib import Path

import pytest

from labs.vms.machine import GuestWords, MachineSpec
from labs.vms.saved import SavedStates, state_key


def keep(states: SavedStates, key: str, content: bytes = b"state") -> None:
    with states.lock(key):
        states.unfinished(key).write_bytes(content)
        states.keep(key)


def test_a_state_is_found_when_it_is_whole(tmp_path: Path) -> None:
    states = SavedStates(tmp_path / "s")
    assert states.find("k1") is None
    with states.lock("k1"):
        states.unfinished("k1").write_bytes(b"half")
        assert states.find("k1") is None
        states.keep("k1")
    found = states.find("k1")
    assert found is not None
    assert found.read_bytes() == b"half"
    assert found.stat().st_mode & 0o777 == 0o600  # a guest's memory
    assert found.parent.stat().st_mode & 0o777 == 0o700
    states.discard("k1")
    assert states.find("k1") is None


def test_what_a_killed_process_did_not_finish_goes_with_the_next_state_of_the_same_lock(
    tmp_path: Path,
) -> None:
    states = SavedStates(tmp_path)
    states.unfinished("a1").write_bytes(b"half")
    states.unfinished("b1").write_bytes(b"another lock's, which may be held")
    keep(states, "a2")
    assert {each.name for each in tmp_path.glob("*.*") if each.suffix != ".lock"} == {"a2.state", "b1.new"}


def test_one_process_at_a_time_makes_a_state(tmp_path: Path) -> None:
    states = SavedStates(tmp_path)
    with states.lock("k1") as first, states.lock("k1") as second:
        assert first.try_acquire()
        assert not second.try_acquire()


def test_states_that_were_used_longest_ago_are_removed(tmp_path: Path) -> None:
    states = SavedStates(tmp_path, most=3, most_bytes=10_000)
    for number, key in enumerate(("ka", "kb", "kc")):
        keep(states, key)
        os.utime(tmp_path / f"{key}.state", (number, number))
    assert states.find("ka") is not None  # used now
    keep(states, "kd")
    assert {each.stem for each in tmp_path.glob("*.state")} == {"ka", "kc", "kd"}


def test_the_bytes_of_all_states_are_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    states = SavedStates(tmp_path, most=9, most_bytes=100)
    for number, key in enumerate(("ka", "kb", "kc")):
        keep(states, key, b"x" * 40)
        os.utime(tmp_path / f"{key}.state", (number, number))
    assert {each.stem for each in tmp_path.glob("*.state")} == {"kb", "kc"}
    keep(states, "kd", b"x" * 200)
    assert {each.stem for each in tmp_path.glob("*.state")} == {"kd"}


@pytest.mark.parametrize(
    ("version", "digest", "spec", "words"),
    [
        ("QEMU 8", "i", MachineSpec(), GuestWords()),
        ("QEMU 7", "j", MachineSpec(), GuestWords()),
        ("QEMU 7", "i", MachineSpec(slots=4), GuestWords()),
        ("QEMU 7", "i", MachineSpec(), GuestWords(workload=True)),
    ],
)
def test_a_state_of_something_else_has_another_key(
    version: str, digest: str, spec: MachineSpec, words: GuestWords
) -> None:
    assert state_key(version, digest, spec, words) != state_key("QEMU 7", "i", MachineSpec(), GuestWords())
