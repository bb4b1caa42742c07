"""Moves of NeonVM's VMs: how they begin, what the core is told of their ends, and who cleans up."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest

from hosting.kubernetes.names import NEON_VM_NAME
from hosting.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES, Manifest
from hosting.logs import logger
from hosting.supervisor import Supervisor
from protocol.wire import PodName
from scheduler.clusters.migrator import CREATED_BY, PENDING_S, RETRY, US, Choose, KubernetesMigrator
from scheduler.permits.core import events
from scheduler.ports import LeadershipGuard, MigratorError, NotLeadingError
from tests.support.kube_api import FakeApiServer
from tests.support.kube_store import Selector
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_permits.service_worlds import Guard

POD: Final = PodName("vm-a-x", "default")
Report = events.MigrationStarted | events.MigrationEnded


@dataclass
class House:
    """An API server with a VM in a pod, a migrator that runs, and what the core was told."""

    server: FakeApiServer
    uids: dict[PodName, str] = field(default_factory=dict)
    told: list[Report] = field(default_factory=list)

    @asynccontextmanager
    async def migrator(
        self, choose: Choose | None = None, guard: LeadershipGuard | None = None
    ) -> AsyncIterator[KubernetesMigrator]:
        log, rng = logger("migrator"), random.Random(1)
        async with self.server.api() as api:
            found = KubernetesMigrator(
                api,
                self.told.append,
                self.uids.get,
                clock=now_s,
                rng=rng,
                log=log,
                choose=choose,
                guard=guard,
            )
            supervisor = Supervisor(log, rng)
            for name, child in found.children().items():
                supervisor.start(name, child)
            await asyncio.sleep(1)
            yield found
            await supervisor.stop()

    def wanted(self) -> events.MigrationWanted:
        return events.MigrationWanted(POD, self.uids[POD], "node-a")

    def migrations(self) -> list[Manifest]:
        return self.server.store.select(MIGRATIONS, "", Selector())

    def status(self, phase: str, source: str = POD.name) -> None:
        """NeonVM's word on the only migration."""
        (found,) = self.migrations()
        status = {"status": {"phase": phase, "sourcePodName": source}}
        key = (found["metadata"]["namespace"], found["metadata"]["name"])
        self.server.store.update(MIGRATIONS, key, {**found, **status}, "status")


def _house() -> House:
    server = FakeApiServer()
    pod = server.put(
        PODS, {"metadata": {"name": POD.name, "namespace": "default", "labels": {NEON_VM_NAME: "vm-a"}}}
    )
    metadata = {"name": "vm-a", "namespace": "default"}
    server.put(VIRTUAL_MACHINES, {"metadata": metadata, "status": {"podName": POD.name}})
    return House(server, {POD: pod["metadata"]["uid"]})


@virtually
async def test_a_move_is_an_object_that_goes_when_the_vm_has_moved() -> None:
    house = _house()
    async with house.migrator() as migrator:
        await migrator.start(house.wanted())
        (found,) = house.migrations()
        uid = house.server.get(VIRTUAL_MACHINES, "default", "vm-a")["metadata"]["uid"]
        assert found["spec"] == {"vmName": "vm-a", "preventMigrationToSameHost": True}
        assert found["metadata"]["ownerReferences"][0]["uid"] == uid
        house.status("Running")
        await asyncio.sleep(60)
        assert len(house.migrations()) == 1
        house.status("Succeeded")
        await asyncio.sleep(1)
        assert house.migrations() == []
        assert house.told == [], "who started it has told that; and the VM's pod goes"


@virtually
async def test_a_move_names_the_node_that_was_chosen() -> None:
    house, asked = _house(), list[events.MigrationWanted]()

    async def choose(wanted: events.MigrationWanted) -> tuple[str, ...]:
        asked.append(wanted)
        return "node-c", "node-b"

    async with house.migrator(choose) as migrator:
        await migrator.start(house.wanted())
    (found,) = house.migrations()
    (term,) = found["spec"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"][0]["values"] == ["node-c"]
    assert asked == [house.wanted()]


@virtually
async def test_a_leadership_that_ends_while_a_target_is_chosen_begins_no_move() -> None:
    house, guard = _house(), Guard()

    async def choose(wanted: events.MigrationWanted) -> tuple[str, ...]:
        del wanted
        guard.leads = False
        return ("node-c",)

    async with house.migrator(choose, guard) as migrator:
        with pytest.raises(NotLeadingError):
            await migrator.start(house.wanted())
    assert house.migrations() == []


@virtually
async def test_a_move_that_has_nowhere_to_go_does_not_begin() -> None:
    house = _house()

    async def choose(wanted: events.MigrationWanted) -> tuple[str, ...]:
        del wanted
        raise MigratorError("no other node can take it")

    async with house.migrator(choose) as migrator:
        with pytest.raises(MigratorError, match="no other node can take it"):
            await migrator.start(house.wanted())
    assert house.migrations() == []


@pytest.mark.parametrize(
    ("end", "wait_s"),
    [
        pytest.param(lambda house: house.status("Failed"), 1.0, id="failed"),
        pytest.param(
            lambda house: house.server.delete(
                MIGRATIONS, "default", house.migrations()[0]["metadata"]["name"]
            ),
            1.0,
            id="removed by hand",
        ),
        pytest.param(lambda house: house.status("Pending"), PENDING_S + 10, id="no node takes it"),
    ],
)
@virtually
async def test_a_move_that_is_given_up_leaves_the_vm_and_its_node_alone_for_a_while(
    end: Callable[[House], None], wait_s: float
) -> None:
    house = _house()
    async with house.migrator() as migrator:
        await migrator.start(house.wanted())
        await asyncio.sleep(2)
        assert house.told == []
        end(house)
        await asyncio.sleep(wait_s)
        (ended,) = house.told
        assert isinstance(ended, events.MigrationEnded)
        assert ended.uid == house.uids[POD]
        assert RETRY.base_s / 2 - 10 <= ended.retry_at_s - now_s() <= RETRY.base_s
        assert house.migrations() == []


def _gone(house: House) -> None:
    house.server.delete(PODS, "default", POD.name)


def _anew(house: House) -> None:
    house.uids[POD] = "uid-of-another"


def _elsewhere(house: House) -> None:
    found = house.server.get(VIRTUAL_MACHINES, "default", "vm-a")
    house.server.store.update(
        VIRTUAL_MACHINES, ("default", "vm-a"), {**found, "status": {"podName": "vm-a-y"}}, "status"
    )


def _moved_by_another(house: House) -> None:
    _by_hand(house, "Running")


def _unreachable(house: House) -> None:
    house.server.is_down = True


def _forbidden(house: House) -> None:
    house.server.fail("status", lambda call: call.method == "POST", status=403, reason="Forbidden")


def _by_hand(house: House, phase: str) -> None:
    house.server.put(
        MIGRATIONS,
        {
            "metadata": {"name": "by-hand", "namespace": "default"},
            "spec": {"vmName": "vm-a"},
            "status": {"phase": phase, "sourcePodName": POD.name},
        },
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_gone, "404 NotFound"),
        (_anew, "is not that of a VirtualMachine any more"),
        (_elsewhere, "VirtualMachine vm-a is not in pod"),
        (_moved_by_another, "is being moved by migration by-hand already"),
        (_unreachable, "refused"),
        (_forbidden, "403 Forbidden"),
    ],
)
@virtually
async def test_a_move_that_cannot_begin_says_why_and_leaves_nothing(
    change: Callable[[House], None], text: str
) -> None:
    house = _house()
    async with house.migrator() as migrator:
        change(house)
        await asyncio.sleep(1)
        with pytest.raises(MigratorError, match=text):
            await migrator.start(house.wanted())
        assert [each for each in house.migrations() if each["metadata"]["name"] != "by-hand"] == []


@virtually
async def test_a_move_begun_twice_is_one_and_one_that_is_over_is_cleaned_up_first() -> None:
    house = _house()
    async with house.migrator() as migrator:
        await migrator.start(house.wanted())
        await migrator.start(house.wanted())
        assert len(house.migrations()) == 1
        house.server.fail("status", lambda call: call.method == "DELETE", times=2, status=500)
        house.status("Failed")
        with pytest.raises(MigratorError, match="not cleaned up yet"):
            await migrator.start(house.wanted())
        await asyncio.sleep(30)
        await migrator.start(house.wanted())
        assert len(house.migrations()) == 1


@virtually
async def test_a_watch_that_lags_is_not_taken_for_a_removal() -> None:
    house = _house()
    async with house.migrator() as migrator:
        house.server.lags = True
        await migrator.start(house.wanted())
        await asyncio.sleep(20)
        assert house.told == []
        house.server.heal()
        house.status("Failed")
        await asyncio.sleep(1)
        assert [type(each) for each in house.told] == [events.MigrationEnded]


@pytest.mark.parametrize("is_ours", [True, False])
@virtually
async def test_moves_of_others_and_of_an_earlier_scheduler_count_and_only_ours_are_deleted(
    is_ours: bool,
) -> None:
    house = _house()
    uid = house.uids.pop(POD)
    _by_hand(house, "Running")
    if is_ours:
        (found,) = house.migrations()
        labels = {"metadata": {**found["metadata"], "labels": {CREATED_BY: US}}}
        house.server.store.update(MIGRATIONS, ("default", "by-hand"), {**found, **labels})
    async with house.migrator():
        await asyncio.sleep(20)
        assert house.told == [], "the core does not know the VM yet"
        house.uids[POD] = uid
        await asyncio.sleep(10)
        assert house.told == [events.MigrationStarted(uid)]
        house.status("Failed")
        await asyncio.sleep(1)
        assert [type(each) for each in house.told[1:]] == [events.MigrationEnded]
        assert len(house.migrations()) == (0 if is_ours else 1)
