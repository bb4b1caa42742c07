"""The profiles over a live core: which one a pod has, when a changed one counts, and what is read for kube-scheduler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hosting.kubernetes.resources import PODS
from protocol.wire import PodName
from scheduler.daemon.scheduling import LiveScheduling
from scheduler.daemon.serving import Serving, Sources
from scheduler.framework.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.framework.runtime.assembly import ProfileError
from scheduler.ports import ClusterUnreachableError
from tests.support.virtual_time import virtually
from tests.unit.scheduler_clusters.kube_manifests import pod
from tests.unit.scheduler_clusters.kube_worlds import World
from tests.unit.scheduler_daemon.test_serving import OPTIONS

FIRST, SECOND = Profile("first"), Profile("second")
UNUSABLE = Profile("third", multi_point=PluginSet((EnabledPlugin("Ghost"),)), path="scheduling.profiles[0]")


@asynccontextmanager
async def live(world: World) -> AsyncIterator[LiveScheduling]:
    serving = Serving(OPTIONS, Sources(world.cluster, None, dict))
    try:
        yield LiveScheduling(world.server.api(), world.cluster, serving)
    finally:
        await serving.close()


@virtually
async def test_a_pod_has_the_profile_that_it_names_or_the_first_one() -> None:
    async with live(World()) as scheduling:
        scheduling.use((FIRST, SECOND))
        found = [scheduling.framework_of(name).profile_name for name in ("second", "default-scheduler")]
        assert found == ["second", "first"]
    async with live(World()) as scheduling:
        scheduling.use_default()
        assert scheduling.framework_of("any").profile_name == "parley-scheduler"


@virtually
async def test_changed_profiles_are_checked_now_and_count_later() -> None:
    """Plugins keep state: a bind under way ends with the plugins that it began with."""
    async with live(World()) as scheduling:
        with pytest.raises(ProfileError, match="Ghost"):
            scheduling.use((UNUSABLE,))
        scheduling.use((FIRST,))
        framework = scheduling.framework_of("first")
        with pytest.raises(ProfileError, match="Ghost"):
            scheduling.use((UNUSABLE,))
        scheduling.use((SECOND,))
        scheduling.use_default()
        assert scheduling.framework_of("second") is framework


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
