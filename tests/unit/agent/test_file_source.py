"""The settings file as a source does more than the conformance suite asks of every source."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.daemon.settings import AgentSettings
from agent.sources import file as source_file
from agent.sources.file import FileSource
from hosting.settings import load
from tests.unit.hosting.raw_peers import recorded

SETTINGS = {"node": "node-a", "scheduler": "http://127.0.0.1:10299/", "stateDirectory": "/tmp/x", "vms": []}


async def test_other_settings_wait_for_a_restart_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "CHECK_S", 0.001)
    path = tmp_path / "agent.yaml"

    def write(**changes: Any) -> None:
        path.with_suffix(".new").write_text(json.dumps(SETTINGS | changes))
        path.with_suffix(".new").replace(path)

    write()
    log, lines = recorded()
    source = FileSource(path, load(path, AgentSettings), log)
    assert await source.changes() == ()
    unit = {"cpu": 1, "memory": "1Gi"}
    vm = {"namespace": "d", "name": "a", "uid": "1", "informant": "http://h:1", "min": unit, "max": unit}
    write(vms=[vm | {"computeUnit": unit}])
    async with asyncio.timeout(20):
        assert len(await source.changes()) == 1
    assert lines == []
    write(periods={"tick": 5})
    async with asyncio.timeout(20):
        assert len(await source.changes()) == 1
    assert [line["event"] for line in lines] == [
        "of the settings file, only VMs and feature gates are taken up without a restart"
    ]
