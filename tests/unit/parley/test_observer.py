"""The observer's source: a change log that is appended to, and how it notices that its evidence is gone."""

import json
from pathlib import Path

import pytest

from parley.observer import Observer, Tail
from protocol.values import Resources


def lines(path: Path, *numbers: int) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"n": number}) + "\n" for number in numbers)


def read(tail: Tail) -> list[int]:
    """The numbers of the new lines."""
    return [line["n"] for line in tail.lines()]


def test_what_was_appended_is_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert read(tail) == []
    lines(path, 1, 2)
    with path.open("a") as file:
        file.write('{"n": ')
    assert read(tail) == [1, 2]
    with path.open("a") as file:
        file.write("3}\n")
    assert read(tail) == [3]
    assert not tail.is_broken


@pytest.mark.parametrize("how", ["removed", "replaced", "cut"])
def test_a_log_that_was_taken_away_is_noticed_and_stays_so(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    lines(path, 1, 2)
    assert read(tail) == [1, 2]
    match how:
        case "removed":
            path.unlink()
        case "replaced":
            path.rename(tmp_path / "away")
            lines(path, 7, 8, 9)
        case _:
            path.write_text("")
    assert read(tail) == []
    assert tail.is_broken
    lines(path, 10)
    assert read(tail) == []
    assert tail.is_broken


def test_the_observer_catches_an_overcommit() -> None:
    """The check can fail: the same lines are lawful on a large node and not on a small one."""
    lines = [
        {"at_s": 1.0, "node": "n", "kind": "daemon"},
        {"at_s": 1.1, "node": "n", "kind": "size", "vm": "a", "cpu": 1000, "memory": 1},
        {"at_s": 1.2, "node": "n", "kind": "size", "vm": "b", "cpu": 1000, "memory": 1},
        {"at_s": 1.3, "node": "n", "kind": "held", "vm": "a", "life": "x", "cpu": 2000, "memory": 1},
        {"at_s": 1.4, "node": "n", "kind": "held", "vm": "a", "life": "x", "cpu": 1000, "memory": 1},
        {"at_s": 1.5, "node": "n", "kind": "target", "vm": "b", "cpu": 2000, "memory": 1},
    ]
    for cpus, broken in ((3, []), (2, [1.3, 1.5])):
        observer = Observer({"n": Resources(cpus * 1000, 10)})
        for line in lines:
            observer.fold(line)
        assert [each.at_s for each in observer.overcommits] == broken
        assert observer.largest["n"] == Resources(3000, 2)


def test_a_vm_that_has_ended_uses_nothing_until_it_has_a_size_again_and_then_what_is_held_counts() -> None:
    observer = Observer({"n": Resources(4000, 10)})

    def fold(kind: str, cpus: int = 0, **more: str) -> int:
        line = {"at_s": 1.0, "node": "n", "vm": "a", "kind": kind, "cpu": cpus * 1000, "memory": 1}
        observer.fold({**line, **more})
        return observer.uses("n")["a"].vcpu_milli // 1000

    assert fold("size", 2) == 2
    assert fold("target", 4) == 4
    assert fold("gone") == 0
    assert fold("held", 3, life="x") == 0
    assert fold("size", 1) == 3
    assert fold("held", 0, life="x") == 1
