"""The commands that ask, as processes, against real programs: an answer, one program away, a restart in the middle of a watch, a pipe that ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from parley.listing.output import GONE, NOBODY
from tests.processes.schedulers import AskingAgent, rows, scheduler
from tests.support.processes import Program, agent_file, cluster_file, free_port, running
from tests.support.waiting import PATIENCE_S, shown_blocking


@dataclass
class House:
    """A scheduler, an agent with the VM d/a, and the VM d/b, for which the test asks."""

    directory: Path
    scheduler: int
    agent: int
    daemon: Program
    stack: ExitStack

    def command(self, *arguments: str) -> list[str]:
        """A call of `parley`."""
        addresses = ("--scheduler", f"127.0.0.1:{self.scheduler}", "--agent", f"127.0.0.1:{self.agent}")
        return [sys.executable, "-m", "parley", *arguments, *addresses]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `parley`; it shows no traceback."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """The node has 4 CPUs: d/a has 1 of them, so that d/b cannot have 4."""
    scheduler_port, informant, agent = (free_port() for _ in range(3))
    cluster_file(tmp_path / "cluster.yaml", ["a", "b"], room=4)
    agent_file(tmp_path / "agent.yaml", scheduler_port, {"a": informant}, most=1)
    with ExitStack() as stack:
        start = stack.enter_context
        start(scheduler(tmp_path, port=scheduler_port, first=True))
        start(
            running("informant", "--port", str(informant), "--approve-all", output=tmp_path / "informant.log")
        )
        serving = ("--config", str(tmp_path / "agent.yaml"), "--port", str(agent))
        daemon = start(running("agent", *serving, output=tmp_path / "agent.log"))
        shown_blocking("that d/a is settled", lambda: rows(scheduler_port).get("d/a") == 1)
        yield House(tmp_path, scheduler_port, agent, daemon, stack)


def test_explain_names_the_limit_its_holder_and_who_does_not_answer(house: House) -> None:
    other = AskingAgent(house.scheduler, "b").settle()
    assert other.ask(4) == (3, ["node-headroom"])
    done = house.call("explain", "d/b")
    head, because, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert head.endswith("its node n1 has no more room (node-headroom).")
    assert "d/a holds 1 CPU of 4 CPU" in because
    assert len(rest) <= 10
    assert "this is told without its agent: " in rest[-1]

    both = json.loads(house.call("explain", "d/a", "-o", "json").stdout)
    assert (both["agentFault"], both["schedulerFault"]) == (None, None)
    assert both["agent"]["vm"] == both["scheduler"]["vm"] == "d/a"
    house.daemon.end(signal.SIGKILL)
    alone = house.call("explain", "a", "-n", "d")
    assert alone.returncode == 0
    assert "connection refused" in alone.stdout

    unknown = house.call("explain", "d/bb")
    assert unknown.returncode == NOBODY
    assert "did you mean d/b" in unknown.stderr


def test_a_watch_survives_a_restart_of_the_scheduler_and_ends_with_ctrl_c(house: House) -> None:
    AskingAgent(house.scheduler, "b").settle().ask(2)
    arguments = house.command("watch", "-A", "-o", "json", "--since-start", "b")[3:]
    with running("parley", *arguments, output=house.directory / "watch.log") as watch:

        def told() -> list[str]:
            found = [json.loads(line) for line in watch.text().splitlines() if line.startswith("{")]
            return [each["outcome"] for each in found]

        shown_blocking("the first decision", told)
        before = len(told())
        house.stack.close()  # the agent and the informant end, too: nobody else asks
        shown_blocking("that the watch has lost it", lambda: "asking again" in watch.text())
        with scheduler(house.directory, port=house.scheduler, first=True):
            again = AskingAgent(house.scheduler, "b").settle()
            again.ask(3)
            shown_blocking("a decision of the new process", lambda: len(told()) > before)
            assert watch.end(signal.SIGINT) == 0
    assert "another scheduler process answers" in watch.text()
    assert "Traceback" not in watch.text()


@pytest.mark.parametrize("command", ["watch", "vms"])
def test_a_reader_that_goes_ends_the_command_quietly(house: House, command: str) -> None:
    AskingAgent(house.scheduler, "b").settle().ask(2)
    more = ("--since-start",) if command == "watch" else ()
    process = subprocess.Popen(
        house.command(command, "-A", *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        code = process.wait(PATIENCE_S)
        assert (code, process.stderr.read()) == (GONE, "")
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
