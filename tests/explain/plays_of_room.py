"""Situations in which the node has no room, or the operator or the VM's own bounds hold growth back."""

from collections.abc import AsyncIterator

from scheduler.permits.core import events
from tests.explain.scheduler_side import SchedulerSide
from tests.explain.situations import situation
from tests.explain.stage import Stage, staged
from tests.support.virtual_time import now_s


@situation("node-headroom", "node n1", "shop/batch", r"\b6\b")
async def full_node_of_one_large_holder() -> AsyncIterator[Stage]:
    """Of the node's 8 CPUs shop/batch holds 6, and web wants 5."""
    scheduler = SchedulerSide(room=8)
    scheduler.vm("batch", 1)
    assert await scheduler.grows("batch", 6) == 6
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("node-headroom", "node n1", "shop/vm-", r"\b2\b")
async def full_node_of_many_small_holders() -> AsyncIterator[Stage]:
    """Seven others hold 2 CPUs each of the node's 16, and web wants 5."""
    scheduler = SchedulerSide(room=16)
    for number in range(7):
        scheduler.vm(f"vm-{number}", 1)
        assert await scheduler.grows(f"vm-{number}", 2) == 2
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("node-headroom", "node n1", "pod", "shop/proxy")
async def full_node_of_a_pod() -> AsyncIterator[Stage]:
    """A pod that is no VM holds 6 of the node's 8 CPUs."""
    scheduler = SchedulerSide(room=8)
    scheduler.pod("proxy", 6)
    async with staged(scheduler) as stage:
        await stage.grows_in_vain(5)
        yield stage


@situation("node-headroom", "node n1", "memory")
async def no_memory_left_but_cpus() -> AsyncIterator[Stage]:
    """The node has CPUs, but no memory, and web wants more of both: it gets the CPUs only."""
    scheduler = SchedulerSide(room=16)
    scheduler.pod("cache", 1, memory_gib=14)
    async with staged(scheduler) as stage:
        await stage.settled()
        stage.agent.load(5, 5)
        await stage.wait(20.0)
        assert stage.agent.document()["permit"] == {"cpu": "5", "memory": "2Gi"}
        yield stage


@situation("node-headroom", "node n1", "over-?full|more is (held|reserved) than")
async def over_full_node() -> AsyncIterator[Stage]:
    """The node has become smaller than what is held there: 12 CPUs are reserved, 8 may be."""
    scheduler = SchedulerSide(room=16)
    scheduler.vm("batch", 1)
    assert await scheduler.grows("batch", 10) == 10
    async with staged(scheduler) as stage:
        await stage.settled()
        scheduler.room(8)
        await stage.grows_in_vain(3)
        yield stage


@situation("node-headroom", "node n1", "shop/batch", r"\b10\b", "start-up|not settled|unsettled")
async def unsettled_neighbour_holds_the_room() -> AsyncIterator[Stage]:
    """After a restart of the scheduler shop/batch has not asked yet: its maximum of 12 CPUs stays reserved."""
    scheduler = SchedulerSide(room=16, is_first_start=False)
    scheduler.vm("batch", 2, most=12, is_new=False)
    async with staged(scheduler, is_new=False) as stage:
        await stage.settled()
        stage.agent.load(6)
        await stage.wait(20.0)
        yield stage


@situation("unsettled", "just started|restarted")
async def unsettled_after_a_restart() -> AsyncIterator[Stage]:
    """The scheduler has just started, and web's agent has not named it yet."""
    scheduler = SchedulerSide(room=16, is_first_start=False)
    async with staged(scheduler, is_new=False) as stage:
        await stage.until(lambda: stage.agent.runner.state.scheduler.is_unsettled, step_s=0.0002)
        yield stage


@situation("vm-bounds", "maximum", r"\b8\b", r"\b12\b")
async def the_vms_own_maximum() -> AsyncIterator[Stage]:
    """Web needs 12 CPUs and may have 8: the agent asks for no more."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.load(12)
        await stage.until(lambda: stage.agent.machine.size.vcpu_milli == 8000)
        await stage.wait(20.0)
        yield stage


@situation("vm-bounds", "maximum", r"\b4\b")
async def the_schedulers_maximum_is_lower() -> AsyncIterator[Stage]:
    """The cluster file gives web at most 4 CPUs, its agent's file 8; it needs 6."""
    async with staged(SchedulerSide(), shown_most=4) as stage:
        await stage.settled()
        stage.agent.load(6)
        await stage.wait(30.0)
        assert stage.agent.document()["reasonCode"] == "vm-bounds"
        yield stage


@situation("stopped", "growth is stopped", "configuration")
async def growth_is_stopped() -> AsyncIterator[Stage]:
    """The operator has stopped all growth."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        scheduler.growth(stopped=True)
        await stage.grows_in_vain(5)
        yield stage


@situation("recommend-only", "recommended for all VMs", r"\b5\b")
async def recommend_only_everywhere() -> AsyncIterator[Stage]:
    """The operator lets growth only be recommended, for all VMs."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        scheduler.growth(recommend_only=True)
        await stage.grows_in_vain(5)
        yield stage


@situation("recommend-only", "recommended for this VM", r"\b5\b")
async def recommend_only_for_this_vm() -> AsyncIterator[Stage]:
    """The operator lets growth of shop/web only be recommended."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        scheduler.growth(recommend_only_vms=("shop/web",))
        await stage.grows_in_vain(5)
        yield stage


@situation("migrating", "migrated")
async def being_migrated() -> AsyncIterator[Stage]:
    """Web is on its way to another node, and does not grow until it has arrived."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        scheduler.service.take(events.MigrationStarted("uid-web"))
        stage.agent.load(5)
        await stage.wait(40.0)
        assert stage.agent.document()["state"] == "migrating"
        yield stage


@situation("gone", "gone")
async def the_vm_has_gone() -> AsyncIterator[Stage]:
    """Web's pod has ended, its agent's runner with it; the scheduler remembers what it decided."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        stage.agent.load(5)
        await stage.wait(20.0)
        await stage.agent_ends()
        await scheduler.reads(events.VmGone(stage.agent.vm.pod, "uid-web", now_s()))
        await stage.wait(20.0)
        yield stage


@situation("satisfied", "wants no other size", "1.12 CPUs busy")
async def it_has_what_it_wants() -> AsyncIterator[Stage]:
    """Nothing is wrong: web has what its load needs."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        await stage.wait(30.0)
        assert stage.agent.document()["state"] == "ok"
        yield stage
