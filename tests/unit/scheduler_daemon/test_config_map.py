"""The configuration in a ConfigMap: taken up as it changes, and with faults not at all."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hosting.kubernetes.resources import CONFIG_MAPS
from hosting.settings import SettingsError
from scheduler.daemon.term import ConfigMapSource
from scheduler.ports import ClusterUnreachableError
from tests.support.kube_api import FakeApiServer
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, virtually

STOP = "growth: {stop: true}"


def _write(server: FakeApiServer, text: str, key: str = "config.yaml") -> None:
    server.put(CONFIG_MAPS, {"metadata": {"namespace": "ns", "name": "rules"}, "data": {key: text}})


@asynccontextmanager
async def _source(server: FakeApiServer) -> AsyncIterator[ConfigMapSource]:
    source = ConfigMapSource(
        server.api(), ("ns", "rules"), now_s, random.Random(1), QUIET, migrator_present=False
    )
    watching = asyncio.create_task(source.run())
    await asyncio.sleep(0.1)
    yield source
    watching.cancel()
    await asyncio.wait([watching])


@virtually
async def test_a_change_is_taken_up_once() -> None:
    server = FakeApiServer()
    _write(server, "")
    async with _source(server) as source:
        first = await source.refresh()
        assert first is not None
        assert not first.rules.growth.stopped
        assert await source.refresh() is None

        _write(server, STOP)
        await asyncio.sleep(0.1)
        second = await source.refresh()
        assert second is not None
        assert second.rules.growth.stopped


@pytest.mark.parametrize(
    ("text", "key", "fault"),
    [
        pytest.param("growth: {halt: true}", "config.yaml", "growth.halt", id="a setting that there is not"),
        pytest.param(
            "migration: {enabled: true}", "config.yaml", "migration.enabled", id="what nobody can do"
        ),
        pytest.param(STOP, "other.yaml", "no key config.yaml", id="another key"),
    ],
)
@virtually
async def test_faults_are_told_until_the_text_changes(text: str, key: str, fault: str) -> None:
    server = FakeApiServer()
    _write(server, STOP)
    async with _source(server) as source:
        await source.refresh()
        _write(server, text, key)
        await asyncio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(SettingsError, match=fault):
                await source.refresh()
        assert source.manifest is not None
        assert source.manifest["metadata"]["name"] == "rules", "faults are told about it"
        _write(server, "")
        await asyncio.sleep(0.1)
        assert await source.refresh() is not None


@virtually
async def test_a_config_map_that_goes_or_cannot_be_asked_for_is_a_fault() -> None:
    server = FakeApiServer()
    async with _source(server) as source:
        with pytest.raises(SettingsError, match="no such ConfigMap"):
            await source.refresh()
    server.is_down = True
    async with _source(server) as source:
        with pytest.raises(ClusterUnreachableError):
            await source.refresh()
