"""A migration begins only if another node has room, also where no plugin is asked for one."""

import pytest

from protocol.wire import PodName
from scheduler.daemon.term import check_room_elsewhere
from scheduler.permits.core import events
from scheduler.ports import MigratorError
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import World

WANTED = events.MigrationWanted(PodName("vm", "default"), "uid-vm", "n1")


def test_a_vm_stays_until_another_node_has_room_for_what_it_holds() -> None:
    world = World(cu(5))
    world.vm("vm", cu(4))
    world.node("n2", cu(3))
    with pytest.raises(MigratorError, match="no other node has room for default/vm of 4 CPU / 4Gi"):
        check_room_elsewhere(world.core.state, WANTED)
    world.node("n2", cu(4))
    check_room_elsewhere(world.core.state, WANTED)


def test_a_vm_that_has_gone_is_for_the_migrator_to_miss() -> None:
    check_room_elsewhere(World().core.state, WANTED)
