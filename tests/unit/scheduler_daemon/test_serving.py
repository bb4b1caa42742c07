"""What is read before a core decides anything."""

from pathlib import Path

from hosting.settings import FaultsError
from scheduler.core.core import Core
from scheduler.core.state import SchedulerConfig
from scheduler.daemon.serving import Serving, ServingOptions, Sources
from scheduler.framework.core.profile import Profile
from scheduler.permits.config_file import Configuration, model_of, read_configuration
from tests.support.virtual_time import virtually
from tests.unit.scheduler_permits.service_worlds import INSTANCE, FakeCluster

OPTIONS: ServingOptions = {
    "published_agents": (),
    "trust_published": False,
    "handover_s": 60.0,
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
        """The port."""
        text, self._unread = self._unread, None
        return read_configuration(self.path, text, model_of(migrator_present=False)) if text else None


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
