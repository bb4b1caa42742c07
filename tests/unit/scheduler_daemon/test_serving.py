"""What is read before a core decides anything."""

from pathlib import Path

from scheduler.core.core import Core
from scheduler.core.state import SchedulerConfig
from scheduler.daemon.serving import Serving, ServingOptions, Sources
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
