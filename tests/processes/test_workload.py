"""The load generator of a guest as a process: it uses what is set, and comes back to that when its children are killed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hosting.client import Answered, HttpClient
from labs.vms.load.client import LoadClient, LoadError
from labs.vms.load.messages import LoadReport
from labs.vms.load.plan import MIB, WORKERS, GuestLoad
from tests.support.processes import Program, fetch, free_port, running
from tests.support.waiting import shown, shown_blocking


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def generator(port: int, tmp_path: Path) -> Iterator[Program]:
    arguments = ("--host", "127.0.0.1", "--port", str(port))
    with running("labs.vms.workload", *arguments, output=tmp_path / "out") as program:
        shown_blocking("the generator", lambda: fetch(port, "/load"))
        yield program


def children(program: Program, kind: str) -> list[psutil.Process]:
    found = psutil.Process(program.process.pid).children()
    return [each for each in found if each.cmdline()[-1:] == [kind]]


async def test_what_is_killed_comes_back_and_what_is_lowered_is_released(
    generator: Program, port: int
) -> None:
    async with HttpClient() as http:
        client = LoadClient(http, f"127.0.0.1:{port}")

        async def seen(what: str, amount: int, done: int) -> LoadReport:
            async def look() -> LoadReport | None:
                report = await client.read()
                is_there = report.actual.memory_bytes == amount and report.jobs.done >= done
                return report if is_there else None

            return await shown(what, look)

        await client.set(GuestLoad(cpus=0.4, memory_bytes=40 * MIB, memory_bytes_per_s=400 * MIB))
        first = await seen("the load", 40 * MIB, 2)
        assert (first.children_ended, first.last_end) == ({"jobs": 0, "memory": 0}, None)
        (holder,) = children(generator, "memory")
        assert holder.memory_info().rss > 40 * MIB
        holder.kill()
        children(generator, "jobs")[0].kill()

        async def both_ended() -> bool:
            return (await client.read()).children_ended == {"jobs": 1, "memory": 1}

        await shown("both ends", both_ended)
        again = await seen("the load again", 40 * MIB, first.jobs.done + 3)
        assert again.last_end is not None
        assert again.last_end.how == f"was killed by signal {signal.SIGKILL.value}"
        await client.set(GuestLoad())
        await seen("nothing held", 0, 0)
        left = psutil.Process(generator.process.pid).children()
    assert generator.end() == 0
    assert psutil.wait_procs(left, timeout=10)[1] == []


async def test_a_generator_that_is_killed_leaves_no_children(generator: Program, port: int) -> None:
    async with HttpClient() as http:
        await LoadClient(http, f"127.0.0.1:{port}").set(GuestLoad(cpus=8, memory_bytes=2**30))

    async def all_started() -> list[psutil.Process] | None:
        found = children(generator, "jobs") + children(generator, "memory")
        return found if len(found) == WORKERS + 1 else None

    started = await shown("all children", all_started)
    generator.end(signal.SIGKILL)
    assert psutil.wait_procs(started, timeout=30)[1] == []


async def test_all_faults_of_a_setting_are_told_at_once(generator: Program, port: int) -> None:
    async with HttpClient() as http:
        url = f"http://127.0.0.1:{port}/load"
        body = b'{"cpus": -1, "memoryBytes": "much", "colour": "red"}'
        answer = await http.call("PUT", url, deadline_s=5.0, body=body)
        assert isinstance(answer, Answered)
        assert answer.status == 400
        assert answer.body.decode().splitlines() == [
            "load: 3 faults",
            "  cpus: must be at least 0 (found -1)",
            "  memoryBytes: must be a whole number (found 'much')",
            "  colour: there is no such setting",
        ]
        with pytest.raises(LoadError, match="status 404"):
            await LoadClient(http, f"127.0.0.1:{port}/elsewhere").read()
    with pytest.raises(LoadError, match="refused"):
        async with HttpClient() as http:
            await LoadClient(http, "127.0.0.1:1").read()
