"""The daemon reads its configuration before a core decides anything."""

import asyncio
import json
from pathlib import Path

import pytest

from hosting import lifecycle
from hosting.client import Answered, HttpClient
from hosting.server import Reply, Request
from hosting.settings import FaultsError
from protocol.notices import LONGEST_POLL_S, NOTICES_PATH
from scheduler.daemon.serving import REFRESH_S, Serving, ServingOptions, Sources, server_limits
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.config_file import Configuration, model_of, read_configuration
from scheduler.placing.core.profile import Profile
from scheduler.program import Program
from tests.support.access import local_access
from tests.support.processes import cluster_file, free_port
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.scheduler_permits.service_worlds import INSTANCE, FakeCluster

OPTIONS: ServingOptions = {
    "published_agents": (),
    "trust_published": False,
    "handover_s": 60.0,
    "rest_s": 60.0,
    "first_start": False,
    "journal": None,
    "state": None,
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
async def test_a_poll_for_notices_is_answered_by_turns_long_before_the_server_would_cut_it() -> None:
    serving = Serving(OPTIONS, Sources(FakeCluster(Core(SchedulerConfig(INSTANCE))), None, dict))
    (route,) = [each for each in serving.routes() if each.path == NOTICES_PATH]
    assert route.deadline_s is not None
    assert route.deadline_s >= LONGEST_POLL_S + 4
    serving.start()
    await route.answer(Request("GET", NOTICES_PATH, query={"agent": "n1"}))
    began_s = now_s()
    await route.answer(Request("GET", NOTICES_PATH, query={"agent": "n1"}))
    assert LONGEST_POLL_S - 1 < now_s() - began_s < LONGEST_POLL_S + 1
    await serving.end()
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
        answer = await page.answer(Request("GET", "/v1/nodes"))
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


@pytest.mark.parametrize(("files", "connections"), [(65_536, 20_480), (4096, 3584), (600, 512)])
def test_as_many_connections_are_taken_as_there_may_be_files_and_some_are_left(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(lifecycle, "allow_open_files", lambda most: min(most, files))
    assert server_limits().connections == connections


async def test_a_poll_is_answered_when_the_end_is_asked_for(tmp_path: Path) -> None:
    port, stop = free_port(), lifecycle.Stop()
    cluster = cluster_file(tmp_path / "cluster.yaml", ["a"])
    program = Program(
        {**OPTIONS, "cluster": cluster, "config": None, "host": "127.0.0.1", "port": port, "page_routes": ()},
        local_access(),
    )
    running = asyncio.create_task(program.run(stop))
    await until(program._serving.supervisor.names, beside=running)
    async with HttpClient() as client:
        url = f"http://127.0.0.1:{port}{NOTICES_PATH}?agent=n1"
        poll = asyncio.create_task(client.call("GET", url, deadline_s=60.0))
        await until(lambda: program._serving.service.notices.open_polls() == 1, beside=running)
        stop.request()
        answer = await poll
    assert isinstance(answer, Answered)
    assert answer.status == 200
    assert await running == 0
