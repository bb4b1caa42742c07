"""The daemon reads its configuration before a core decides anything."""

import asyncio
import json
from pathlib import Path

from hosting.server import Reply, Request
from hosting.settings import FaultsError
from scheduler.daemon.serving import REFRESH_S, Serving, ServingOptions, Sources
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.config_file import Configuration, model_of, read_configuration
from scheduler.placing.core.profile import Profile
from tests.support.virtual_time import virtually
from tests.unit.scheduler_permits.service_worlds import INSTANCE, FakeCluster

OPTIONS: ServingOptions = {
    "published_agents": (),
    "trust_published": False,
    "handover_s": 60.0,
    "rest_s": 60.0,
    "first_start": False,
    "journal": None,
    "state": None,
    "pool_writes_from_anywhere": False,
}


class Described:
    """A configuration that is shown once, as long as it does not change."""

    path = Path("rules.yaml")

    def __init__(self, text: bytes) -> None:
        self._unread: bytes | None = text

    async def refresh(self) -> Configuration | None:
        text, self._unread = self._unread, None
        return read_configuration(self.path, text, model_of(migrator_present=False)) if text else None


class Rewritten(Described):
    """One whose `text` may be written anew. Its faults are told each time, as those of files and ConfigMaps."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.text = b""
        self._read: bytes | None = None

    async def refresh(self) -> Configuration | None:
        if self.text == self._read:
            return None
        found = read_configuration(self.path, self.text, model_of(migrator_present=False))
        self._read = self.text
        return found


@virtually
async def test_a_configuration_that_cannot_be_taken_up_is_a_fault_of_each_load() -> None:
    described = Described(b"pools: {plugins: [{name: ghost}]}")
    cluster = FakeCluster(Core(SchedulerConfig(INSTANCE)))
    serving = Serving(OPTIONS, Sources(cluster, described, dict))

    for _ in range(3):
        faults = await serving.load()
        assert len(faults) == 1
        assert "ghost" in faults[0]
    await serving.close()


@virtually
async def test_profiles_that_cannot_be_used_keep_a_configuration_from_being_taken_up() -> None:
    """As a whole, with the place of each fault; rules are not taken without the profiles beside them."""

    def refuses(profiles: tuple[Profile, ...]) -> None:
        raise FaultsError([f"{profiles[0].path}: there is no such plugin"])

    described = Described(b"growth: {recommendOnly: true}")
    cluster = FakeCluster(Core(SchedulerConfig(INSTANCE)))
    serving = Serving(OPTIONS, Sources(cluster, described, dict, use_profiles=refuses))
    (fault,) = await serving.load()
    assert fault.splitlines() == ["rules.yaml: 1 fault", "  scheduling.profiles[0]: there is no such plugin"]
    assert not serving.core.state.rules.growth.recommend_only
    await serving.close()


@virtually
async def test_a_configuration_with_faults_is_told_once_and_shown_until_it_is_mended() -> None:
    described, told = Rewritten(), list[str]()
    cluster = FakeCluster(Core(SchedulerConfig(INSTANCE)))
    serving = Serving(OPTIONS, Sources(cluster, described, dict, refused=told.append))
    (page,) = [each for each in serving.routes() if each.path == "/v1/nodes"]

    async def shown() -> str:
        answer = await page.handler(Request("GET", "/v1/nodes"))
        assert isinstance(answer, Reply)
        return str(json.loads(answer.body)["configurationFault"])

    async def refreshed(text: bytes) -> str:
        described.text = text
        await asyncio.sleep(2 * REFRESH_S)
        return await shown()

    assert await serving.load() == []
    serving.start()
    assert await refreshed(b"") == ""
    fault = await refreshed(b"growth: {stop: flase}")
    assert fault.startswith("rules.yaml: 1 fault; growth.stop: must be true or false")
    assert told == [fault]
    assert await refreshed(b"growth: {stop: flase}") == fault
    assert told == [fault], "the same text is no news"
    assert await refreshed(b"growth: {stop: true}") == ""
    await serving.end()
    await serving.close()
