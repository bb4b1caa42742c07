"""The back ends that settings can name, and what they need."""

import random
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from agent.backends.change_log import ChangeLog
from agent.backends.factories import FACTORIES, BackendOptions, OnQemu
from agent.backends.qemu.core.state import GuestRules
from agent.core.ports import BackendError, VmDescription
from hosting import logs
from hosting.client import HttpClient
from tests.unit.agent.guests import GUEST_VM


def options(directory: Path, log: ChangeLog) -> BackendOptions:
    there = OnQemu(GuestRules(), HttpClient(), lambda _: None, logs.logger("test"))
    return BackendOptions(directory, log, random.Random(1), qemu=there)


async def test_guests_of_qemu_are_known_by_their_socket_and_one_without_qemu_is_told_so(
    tmp_path: Path,
) -> None:
    with ChangeLog(tmp_path, "node-a") as log:
        made = FACTORIES["qemu"](options(tmp_path, log))
        made.prepare(VmDescription(GUEST_VM, "http://127.0.0.1:1", qmp=str(tmp_path / "none.sock")))
        with pytest.raises(BackendError, match=r"none\.sock: no QEMU answers there: no such file"):
            await made.backend.fence(GUEST_VM)
        assert made.machines is not None
        assert made.machines.machine(GUEST_VM.name) is None
        await made.machines.forget(GUEST_VM.name)
        with pytest.raises(BackendError, match="is no guest of this agent"):
            await made.backend.fence(GUEST_VM)
        await made.machines.close()


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "agent.backends.qemu.backend", cast("Any", None)
    )  # as if it could not be imported
    with ChangeLog(tmp_path, "node-a") as log, pytest.raises(BackendError, match=r"pip install '\.\[vm\]'"):
        FACTORIES["qemu"](options(tmp_path, log))
