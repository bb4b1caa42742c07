"""Status of our objects: what Pools and ScalingPolicies say of themselves, and how often that is written."""

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from hosting.kubernetes.resources import POOLS, Manifest, ResourceType
from protocol.values import ZERO
from protocol.wire import PodName
from scheduler.clusters.kubernetes.pools import FINALIZER, KubernetesPools, pool_status
from scheduler.clusters.kubernetes.reading import Description, FoundPod
from scheduler.clusters.kubernetes.status import INTERVAL_S, MAX_FAULTS, StatusWriter, policy_status
from scheduler.permits.core.model import PodSpec
from tests.support.amounts import UNIT
from tests.support.kube_api import FakeApiServer, writes
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_clusters.kube_manifests import policy

WALL = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)


def _pool(name: str = "bank", **spec: Any) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {"team": "x"}},
        "spec": {"computeUnit": {"cpu": 1, "memory": "1Gi"}, **spec},
    }


def _conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


# ---------------------------------------------------------------- policies


def _pod(name: str, *faults: str) -> tuple[tuple[str, str], Description]:
    found = FoundPod(PodSpec(PodName(name, "default"), name, "n1", ZERO))
    return ("default", name), Description(found, faults, "p")


def test_a_policy_shows_what_it_finds_and_what_is_wrong() -> None:
    well = policy_status(policy(), (), [_pod("a"), _pod("b")], WALL)
    assert (well["observedGeneration"], well["matchedPods"], well["faults"]) == (1, 2, [])
    assert _conditions(well) == {"Ready": ("True", "PodsFound")}

    many = [_pod(f"p{number}", "no such unit") for number in range(MAX_FAULTS + 4)]
    badly = policy_status(policy(), (), many, WALL)
    assert badly["faults"][0] == "pod p0: no such unit"
    assert badly["faults"][-1] == "and 4 more"
    assert _conditions(badly) == {"Ready": ("False", "Faults")}


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    first = policy_status(policy(), (), [_pod("a")], WALL)
    shown = {**policy(), "status": first}

    same = policy_status(shown, (), [_pod("a"), _pod("b")], LATER)
    other = policy_status(shown, ("unreadable",), [], LATER)

    assert same["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert other["conditions"][0]["lastTransitionTime"] == "2026-01-02T04:00:00Z"


@virtually
async def test_status_is_written_where_it_differs_and_not_too_often() -> None:
    server = FakeApiServer()
    server.put(POOLS, _pool())
    writer = StatusWriter(server.api(), POOLS, now_s, QUIET)

    def written() -> int:
        return sum(writes(call) for call in server.calls)

    async def write(replicas: int, **more: int) -> None:
        await writer.write([(server.get(POOLS, "", "bank"), {"replicas": replicas, **more})])

    await write(1)
    await write(1)
    await write(2)
    assert written() == 1
    await asyncio.sleep(INTERVAL_S)
    await write(2, members=1)
    await write(2, members=1)
    assert written() == 2

    for _ in range(3):  # a field that is there no more differs no more, either
        await asyncio.sleep(INTERVAL_S)
        await write(2)
    assert written() == 3
    assert server.get(POOLS, "", "bank")["status"] == {"replicas": 2}
    assert server.get(POOLS, "", "bank")["status"] == {"replicas": 2}


# ---------------------------------------------------------------- pools


class Views:
    """The views of the pools of a core."""

    def __init__(self) -> None:
        self.has_plugins = False
        self.faults: dict[str, str] = {}
        self.there: set[str] = {"bank"}

    def view(self, name: str) -> Mapping[str, Any] | None:
        conditions = [{"type": "Admitted", "status": "Unknown", "reason": "NotAsked", "message": "-"}]
        status = {"totalUnits": 3, "members": 2, "conditions": conditions}
        return {"computeUnit": UNIT.written(), "status": status} if name in self.there else None


@pytest.mark.parametrize(
    ("is_there", "fault", "accepted"),
    [
        (True, "", ("True", "Counts")),
        (False, "", ("Unknown", "Waiting")),
        (True, "the team has no quota", ("False", "Refused")),
    ],
)
def test_a_pool_shows_whether_it_counts_as_described(
    is_there: bool, fault: str, accepted: tuple[str, str]
) -> None:
    status = pool_status(_pool(), Views().view("bank" if is_there else "-"), fault, WALL)

    assert _conditions(status)["Accepted"] == accepted
    assert status.get("replicas") == (3 if is_there else None)


class PoolsWorld:
    """A fake API server, and the pools that are described there."""

    def __init__(self) -> None:
        self.server, self.views = FakeApiServer(), Views()
        self.told: list[tuple[str, str]] = []
        """The faults that were told, each with the name of its object."""
        self.pools = KubernetesPools(
            self.server.api(), now_s, random.Random(1), QUIET, lambda: WALL, self._tell_fault
        )

    def _tell_fault(self, _: ResourceType, manifest: Manifest, fault: str) -> None:
        self.told.append((manifest["metadata"]["name"], fault))

    async def turn(self) -> None:
        """See what there is, and write what has changed."""
        await asyncio.sleep(INTERVAL_S)
        await self.pools.load()
        self.pools.described()
        await self.pools.write(self.views)

    def finalizers(self) -> Any:
        return self.server.get(POOLS, "", "bank")["metadata"].get("finalizers") or []


@virtually
async def test_pools_are_described_by_their_objects() -> None:
    world = PoolsWorld()
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 300_000}
    manifest = _pool(limits={"maxUnits": 4})
    manifest["metadata"]["annotations"] = applied
    world.server.put(POOLS, manifest)
    await world.turn()

    described = world.pools.described()
    assert (described["bank"].limits.max_units, dict(described["bank"].labels)) == (4, {"team": "x"})
    assert not described["bank"].annotations
    assert world.pools.described() is described


Spec = Mapping[str, Any]
FOUR: Spec = {"limits": {"maxUnits": 4}}


@pytest.mark.parametrize(
    ("faulty", "field"),
    [
        ({"limits": {"maxUnits": 4, "minUnits": 5}}, "minUnits"),
        ({"limits": {"maxUnits": "many"}}, "maxUnits"),
        ({"limits": {"mostUnits": 3}}, "mostUnits"),
        ({"computeUnit": {"cpu": "lots", "memory": "1Gi"}, **FOUR}, "computeUnit"),
        ({"computeUnit": None, **FOUR}, "computeUnit"),
    ],
    ids=["contradiction", "no number", "misspelt", "no quantity", "no unit"],
)
@pytest.mark.parametrize("before", [FOUR, None], ids=["described before", "faulty from the start"])
@virtually
async def test_a_pool_with_faults_counts_as_before_or_not_at_all_and_the_fault_is_told_once(
    before: Spec | None, faulty: Spec, field: str
) -> None:
    world = PoolsWorld()
    if before is not None:
        world.server.put(POOLS, _pool(**before))
        await world.turn()
    described = world.pools.described()

    for _ in range(2):
        world.server.put(POOLS, _pool(**faulty))
        await world.turn()
    assert world.pools.described() is described, "nothing has changed, so nothing is taken up"
    assert [pool.limits.max_units for pool in described.values()] == ([4] if before is not None else [])
    ((name, fault),) = world.told
    assert name == "bank"
    assert field in fault
    status = world.server.get(POOLS, "", "bank")["status"]
    assert _conditions(status)["Accepted"] == ("False", "Refused")
    assert field in status["conditions"][0]["message"]

    world.server.put(POOLS, _pool(limits={"maxUnits": 3}))
    await world.turn()
    assert world.pools.described()["bank"].limits.max_units == 3, "it is in order again"
    assert len(world.told) == 1


@virtually
async def test_a_pool_that_is_made_anew_with_faults_is_another_one() -> None:
    world = PoolsWorld()
    for manifest in (_pool(**FOUR), None, _pool(limits={"maxUnits": "many"})):
        if manifest is None:
            world.server.delete(POOLS, "", "bank")
        else:
            world.server.put(POOLS, manifest)
        await world.turn()
    assert world.pools.described() == {}


@virtually
async def test_hooks_hold_the_deletion_of_a_pool() -> None:
    world = PoolsWorld()
    world.server.put(POOLS, _pool())
    await world.turn()
    assert world.finalizers() == [], "nobody has to be asked"

    world.views.has_plugins = True
    await world.turn()
    assert world.finalizers() == [FINALIZER]

    world.server.delete(POOLS, "", "bank")
    await world.turn()
    assert world.finalizers() == [FINALIZER], "its hooks are asked"
    world.views.there.clear()
    await world.turn()
    assert world.server.store.find(POOLS, ("", "bank")) is None
