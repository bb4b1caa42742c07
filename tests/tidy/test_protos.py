"""The committed modules of the .proto files are what the compiler makes of them now."""

from pathlib import Path

from tests.support.protos import PROTOS, made
from tests.tidy.repository import ROOT


def modules(root: Path) -> dict[str, str]:
    """The generated files below a directory, with their text."""
    return {path.name: path.read_text() for path in (root / PROTOS).glob("*_pb2*.py*")}


def test_the_modules_of_the_proto_files_are_what_make_protos_makes(tmp_path: Path) -> None:
    made(tmp_path)
    fresh, committed = modules(tmp_path), modules(ROOT)
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == [], "run `make protos`"
