"""The profiles over a live core: which one a pod has, which changes count, and what is read for kube-scheduler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hosting import logs
from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import PODS, Manifest
from protocol.wire import PodName
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.daemon import scheduling as scheduling_module
from scheduler.daemon.scheduling import LiveScheduling, check_usable
from scheduler.daemon.serving import Serving, Sources
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import Controller, CycleContext
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.cycle.assembly import ProfileError
from scheduler.placing.plugins.registry import Registry, new_registry
from scheduler.ports import ClusterUnreachableError, SoleScheduler
from tests.support.servers import Certain
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_clusters.kube_manifests import pod
from tests.unit.scheduler_clusters.kube_worlds import World, opened
from tests.unit.scheduler_daemon.test_serving import OPTIONS

FIRST, SECOND = Profile("first"), Profile("second")
UNUSABLE = Profile("third", multi_point=PluginSet((EnabledPlugin("Ghost"),)), path="scheduling.profiles[0]")


@asynccontextmanager
async def live(world: World, *, is_full: bool = False) -> AsyncIterator[LiveScheduling]:
    serving = Serving(OPTIONS, Sources(world.cluster, None, dict))
    try:
        api = world.server.api()
        recorder = EventRecorder(
            api, "parley.dev/scheduler", instance="", clock=now_s, rng=Certain(), log=logs.logger("test")
        )
        yield LiveScheduling(
            api,
            world.cluster,
            serving,
            recorder=recorder,
            guard=SoleScheduler(),
            rng=Certain(),
            is_full=is_full,
        )
    finally:
        await serving.supervisor.stop()
        await serving.close()


@virtually
async def test_a_pod_has_the_profile_that_it_names_or_the_first_one() -> None:
    async with live(World()) as scheduling:
        scheduling.use((FIRST, SECOND))
        found = [
            scheduling.framework_of(name).profile.scheduler_name for name in ("second", "default-scheduler")
        ]
        assert found == ["second", "first"]
    async with live(World()) as scheduling:
        scheduling.prepare()
        assert scheduling.framework_of("any").profile.scheduler_name == "parley-scheduler"


@virtually
async def test_changed_profiles_count_unless_they_have_faults() -> None:
    async with live(World()) as scheduling:
        with pytest.raises(ProfileError, match="Ghost"):
            scheduling.use((UNUSABLE,))
        scheduling.use((FIRST,))
        with pytest.raises(ProfileError, match="Ghost"):
            scheduling.use((UNUSABLE,))
        scheduling.prepare()
        assert scheduling.framework_of("any").profile.scheduler_name == "first"
        scheduling.use((SECOND,))
        assert scheduling.framework_of("any").profile.scheduler_name == "second"


@pytest.mark.parametrize("is_full", [False, True], ids=["extender", "full"])
def test_profiles_with_faults_are_known_before_anybody_leads(is_full: bool) -> None:
    check_usable([FIRST, SECOND], is_full=is_full)
    with pytest.raises(ProfileError, match="Ghost"):
        check_usable([FIRST, UNUSABLE], is_full=is_full)


@virtually
async def test_what_is_there_is_described_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many pods that takes long, and nobody would be answered meanwhile."""
    world = World()
    world.put(PODS, pod("p"))
    described: list[str] = []
    describe = PlacingView.as_far_as_readable

    def noted(view: PlacingView, manifest: Manifest) -> PodInfo:
        described.append(manifest["metadata"]["name"])
        return describe(view, manifest)

    monkeypatch.setattr(PlacingView, "as_far_as_readable", noted)
    async with opened(world), live(world) as scheduling:
        await world.refresh()
        scheduling.prepare()
        assert described == ["p"]
        scheduling.snapshot()
        assert described == ["p"]


@virtually
async def test_a_pod_is_read_as_the_api_server_has_it() -> None:
    world = World()
    world.put(PODS, pod("p"))
    async with live(world) as scheduling:
        found = await scheduling.read_pod(PodName("p", "default"))
        assert found is not None
        assert found["metadata"]["name"] == "p"
        assert await scheduling.read_pod(PodName("absent", "default")) is None
        world.server.is_down = True
        with pytest.raises(ClusterUnreachableError):
            await scheduling.read_pod(PodName("p", "default"))


class Working:
    """A plugin with a controller, which fails at first."""

    def __init__(self, args: object, handle: ExtendedHandle) -> None:
        del args
        self.informer = handle.shared_informer(ELASTIC_QUOTAS)
        self.log: list[str] = []

    def name(self) -> str:
        return "Working"

    def pre_filter(self, context: CycleContext, pod: PodInfo, nodes: object) -> tuple[None, None]:
        return None, None

    def new_controllers(self) -> list[Controller]:
        return [Controller("worker", self._work)]

    async def _work(self) -> None:
        self.log.append("begun")
        if len(self.log) == 1:
            raise LookupError("oops")
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("ended")


@virtually
async def test_controllers_of_plugins_run_while_their_profiles_are_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def registry() -> Registry:
        found = new_registry()
        found.register("Working", Working)
        return found

    monkeypatch.setattr(scheduling_module, "new_registry", registry)
    working = Profile("first", multi_point=PluginSet((EnabledPlugin("Working"),)))
    async with live(World()) as scheduling:
        scheduling.use((working,))
        scheduling.start()
        plugin = scheduling.framework_of("first").plugins["Working"]
        assert isinstance(plugin, Working)
        await asyncio.sleep(5)
        assert plugin.log == ["begun", "begun"], "begun again after its failure"
        assert plugin.informer.has_synced
        scheduling.use((SECOND,))
        await turns()
        assert plugin.log == ["begun", "begun", "ended"]
