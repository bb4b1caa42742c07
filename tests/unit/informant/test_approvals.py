"""The size that was approved is kept over restarts of the informant and not of the guest, whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from informant.guest.approvals import BOOT_ID, Agreed, Approvals
from protocol.values import Resources

SIZE, OTHER = Agreed(Resources(2500, 3 * 2**30), 90 * 2**20), Agreed(Resources(1000, 2**30))
LIFE, NEXT_LIFE = "6f1d2a52-life", "0b77e4c1-life"
GOOD = {"vcpuMilli": 2500, "memoryBytes": 3 * 2**30, "hiddenBytes": 90 * 2**20, "bootId": LIFE}


class State:
    """A directory of the informant in a guest that can be started anew."""

    def __init__(self, path: Path) -> None:
        self.directory = path / "state"
        self.file = self.directory / "size.json"
        self.boot_id = path / "boot_id"
        self.boot_id.write_text(f"{LIFE}\n")

    def approvals(self) -> Approvals:
        """Those of an informant that was just started."""
        return Approvals(self.directory, self.boot_id)

    def put(self, content: bytes | str) -> None:
        self.directory.mkdir(exist_ok=True)
        self.file.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_a_size_is_there_for_the_next_informant(state: State) -> None:
    approvals = state.approvals()
    assert approvals.load() is None
    approvals.keep(SIZE)
    assert approvals.load() == state.approvals().load() == SIZE
    assert json.loads(state.file.read_text()) == GOOD


def test_a_guest_that_was_started_anew_has_another_size(state: State) -> None:
    state.approvals().keep(SIZE)
    state.boot_id.write_text(f"{NEXT_LIFE}\n")
    assert state.approvals().load() is None
    state.approvals().keep(OTHER)
    assert state.approvals().load() == OTHER
    state.boot_id.write_text(f"{LIFE}\n")
    assert state.approvals().load() is None


def test_a_guest_that_does_not_tell_its_life_remembers_nothing(state: State) -> None:
    state.approvals().keep(SIZE)
    state.boot_id.unlink()
    assert state.approvals().load() is None
    with pytest.raises(FileNotFoundError):
        state.approvals().keep(OTHER)
    state.boot_id.write_text(f"{LIFE}\n")
    assert state.approvals().load() is None


def test_this_machine_tells_its_life(tmp_path: Path) -> None:
    if not BOOT_ID.exists():
        pytest.skip(f"there is no {BOOT_ID}: mount /proc to see this")
    Approvals(tmp_path).keep(SIZE)
    assert Approvals(tmp_path).load() == SIZE
    assert json.loads((tmp_path / "size.json").read_text())["bootId"] == BOOT_ID.read_text().strip()


# ---------------------------------------------------------------- what cannot be read


def _but(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


def _less(name: str) -> str:
    return json.dumps({key: value for key, value in GOOD.items() if key != name})


GARBAGE: dict[str, bytes | str] = {
    "nothing": "",
    "a null": "null",
    "a list": "[]",
    "a number": "5",
    "a text": '"size"',
    "an empty object": "{}",
    "no JSON": "vcpuMilli: 2500",
    "no text": b"\xff\xfe\x00",
    "zeros": bytes(200),
    "no CPU": _less("vcpuMilli"),
    "no memory": _less("memoryBytes"),
    "no life": _less("bootId"),
    "CPU that is no number": _but(vcpuMilli="lots"),
    "CPU that is null": _but(vcpuMilli=None),
    "CPU that is a list": _but(vcpuMilli=[2500]),
    "CPU that is not a number": _but(vcpuMilli=float("nan")),
    "no CPU at all": _but(vcpuMilli=0),
    "less than no CPU": _but(vcpuMilli=-2500),
    "no memory at all": _but(memoryBytes=0),
    "less than no memory": _but(memoryBytes=-1),
    "another life": _but(bootId=NEXT_LIFE),
    "a life that is null": _but(bootId=None),
    "what is hidden that is no number": _but(hiddenBytes="lots"),
    "what is hidden that is null": _but(hiddenBytes=None),
    "more than one": json.dumps(GOOD) * 2,
    "CPU without end": _but(vcpuMilli=float("inf")),
    "lists without end": "[" * 4096,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_no_size_and_is_replaced_by_the_next(content: bytes | str, state: State) -> None:
    state.put(content)
    assert state.approvals().load() is None
    state.approvals().keep(OTHER)
    assert state.approvals().load() == OTHER


def test_a_file_that_is_cut_off_anywhere_is_no_size(state: State) -> None:
    state.approvals().keep(SIZE)
    whole = state.file.read_bytes()
    for length in range(len(whole)):
        state.put(whole[:length])
        assert state.approvals().load() is None, whole[:length]
    state.put(whole)
    assert state.approvals().load() == SIZE


@pytest.mark.parametrize("content", [_less("hiddenBytes"), _but(hiddenBytes=-5)])
def test_a_file_that_does_not_tell_what_is_hidden_is_a_size_all_the_same(content: str, state: State) -> None:
    state.put(content)
    assert state.approvals().load() == Agreed(SIZE.size, 0)


def test_a_file_is_read_up_to_a_bound(state: State) -> None:
    """Whatever it is, a few figures need no more."""
    padding = 4096 - len(_but(more=""))
    state.put(_but(more="x" * padding))
    assert state.approvals().load() == SIZE
    state.put(_but(more="x" * (padding + 1)))
    assert state.approvals().load() is None


@pytest.mark.parametrize("kind", ["a directory", "a broken link", "a file in place of the directory"])
def test_what_is_no_file_is_no_size(kind: str, state: State) -> None:
    match kind:
        case "a directory":
            state.file.mkdir(parents=True)
        case "a broken link":
            state.directory.mkdir()
            state.file.symlink_to("nowhere")
        case _:
            state.directory.write_text("")
    assert state.approvals().load() is None


# ---------------------------------------------------------------- keeping


def test_the_directory_is_made_with_all_that_it_lies_in(tmp_path: Path, state: State) -> None:
    approvals = Approvals(tmp_path / "a" / "b" / "c", state.boot_id)
    approvals.keep(SIZE)
    assert approvals.load() == SIZE


def test_a_directory_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path, state: State) -> None:
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        approvals = Approvals(directory, state.boot_id)
        with pytest.raises(OSError, match="file"):
            approvals.keep(SIZE)
        assert approvals.load() is None
    assert (tmp_path / "file").read_text() == "mine"


def test_a_size_that_cannot_be_kept_is_no_reason_to_go_by_an_old_one(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("the disk is full")

    state.approvals().keep(SIZE)
    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="full"):
            state.approvals().keep(OTHER)
    assert state.approvals().load() is None
    state.approvals().keep(OTHER)  # what was left of the failure is in nobody's way
    assert state.approvals().load() == OTHER


def test_what_was_half_written_when_the_informant_ended_counts_for_nothing(state: State) -> None:
    state.approvals().keep(SIZE)
    half = json.dumps({**GOOD, "vcpuMilli": 1})[:40]
    (state.directory / "size.new").write_text(half + "x" * 500)
    assert state.approvals().load() == SIZE
    state.approvals().keep(OTHER)
    assert state.approvals().load() == OTHER
