"""The informant's process says in its first lines what it can and cannot have of its guest, and takes it."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import Program, fetch, running, write_json
from tests.support.waiting import shown_blocking
from tests.unit.informant.cgroup_tree import Tree

MEASURES = {"oom_score_adj", "priority", "cpu.weight", "mlock"}
# As `python -m informant`, but for the group that it lives in: the first argument.
ELSEWHERE = """
import sys
from pathlib import Path
from informant.guest import protection
own = Path(sys.argv.pop(1))
protection.own_group = lambda root: own
from informant.program import main
main()
"""


def lines(program: Program) -> list[dict[str, Any]]:
    """Its log."""
    return [json.loads(line) for line in program.text().splitlines()]


@contextmanager
def serving(
    own: Tree, *arguments: str, **settings: Any
) -> Iterator[tuple[Program, dict[str, Any], dict[str, dict[str, Any]]]]:
    """One that lives in a group and serves: the program, its line that it serves, and those on what can be had."""
    directory = own.path.parent
    config = write_json(directory / "informant.yaml", {"state": str(directory / "state"), **settings})
    options = (str(own.path), "--port", "0", "--config", str(config), *arguments)
    with running("-c", ELSEWHERE, *options, output=directory / "output") as program:

        def last() -> dict[str, Any] | None:
            return next((line for line in lines(program) if line["event"] == "serving"), None)

        serves = shown_blocking("a line that it serves", last)
        told = {line["what"]: line for line in lines(program) if line["event"] in ("can", "cannot")}
        yield program, serves, told
        assert program.end(signal.SIGTERM) == 0
        assert "Traceback" not in program.text()


def test_the_first_lines_say_what_can_and_what_cannot_be_had(tmp_path: Path) -> None:
    tree, own = Tree(tmp_path / "group"), Tree(tmp_path / "own")
    (tree.path / "memory.stat").unlink()
    with serving(own, "--cgroup", str(tree.path)) as (_, serves, told):
        assert serves["resident_bytes"] > 2**20
        assert b"node_load1 " in fetch(int(serves["address"].rpartition(":")[2]), "/metrics")
        for what, line in told.items():
            assert line["level"] == ("info" if line["event"] == "can" else "warning"), what
            assert line["told"], what
        assert [
            told[what]["event"]
            for what in ("cgroup", "cgroup file memory.stat", "cpu.weight", "events of memory.events")
        ] == ["cannot", "cannot", "can", "can"]
        assert told["cgroup"]["told"] == f"{tree.path}, in part"
        assert told["cgroup file memory.stat"]["told"] == "is not there"
        assert {f"trigger of {tree.path}/{name}.pressure" for name in ("cpu", "memory")} | MEASURES <= set(
            told
        )
        # Unlike one that looks once, it takes its share of the CPUs, and sets limits.
        assert (own.path / "cpu.weight").read_text() == "10000"
        shown_blocking("a limit", lambda: (tree.path / "memory.high").read_text().strip().isdecimal())


def test_what_is_not_wanted_is_left_alone(tmp_path: Path) -> None:
    """No protection by the settings, no triggers; and of a guest whose load is synthetic nothing is to be had."""
    own = Tree(tmp_path / "own")
    with serving(own, protect=False, events="polling") as (_, _, told):
        assert MEASURES.isdisjoint(told)
        assert {told[what]["told"] for what in told if what.startswith("trigger")} == {
            "not wanted by the settings"
        }
        assert told["cgroup"]["event"] == "cannot"
    (tmp_path / "output").unlink()
    with serving(own, "--workload", "step") as (_, _, told):
        assert told == {}
    assert (own.path / "cpu.weight").read_text() == "100\n"
