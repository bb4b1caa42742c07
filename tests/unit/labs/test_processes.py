"""Processes that are held: an ID that is used again is nobody else."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from labs.vms.processes import hold, identity_of, spawn

SLEEPER = ["/bin/sh", "-c", "echo begun; read forever < /dev/zero"]


async def test_a_process_is_known_by_its_start_and_ends_when_killed(tmp_path: Path) -> None:
    ours = spawn(SLEEPER, tmp_path / "output")
    try:
        identity = identity_of(ours.pid)
        assert identity is not None
        held = hold(identity)
        assert held is not None
        assert held.is_running
        assert hold(replace(identity, started_ticks=identity.started_ticks + 1)) is None
        assert hold(replace(identity, boot_id="another boot")) is None
        held.kill()
        await held.ended()
        await ours.ended()
        assert (ours.exit_code, held.exit_code) == (-signal.SIGKILL, None)  # the second one knows of no child
        assert identity_of(ours.pid) is None
        assert hold(identity) is None
        held.kill()  # of no effect
        held.close()
        held.close()
    finally:
        ours.kill()
        ours.close()


async def test_several_may_wait_for_the_end(tmp_path: Path) -> None:

    ours = spawn(SLEEPER, tmp_path / "output")
    waiting = [asyncio.create_task(ours.ended()) for _ in range(3)]
    await asyncio.sleep(0)
    ours.kill()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
    assert ours.exit_code == -signal.SIGKILL
    ours.close()


async def test_what_it_prints_is_in_the_file_for_the_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("before\n")
    ours = spawn(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path / "output")
    await ours.ended()
    assert ours.exit_code == 3
    assert (tmp_path / "output").read_text() == "before\nout\nerr\n"
    ours.close()
    new = spawn(["/bin/true"], tmp_path / "new")
    await new.ended()
    new.close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_process_that_never_was_is_nobody() -> None:
    assert identity_of(2**22 + 1) is None
    me = identity_of(os.getpid())
    assert me is not None
    assert hold(replace(me, pid=2**22 + 1)) is None


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        spawn([str(tmp_path / "none")], tmp_path / "output")
