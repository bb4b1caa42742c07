"""QEMU guests and their back end: what is sent to QEMU and to the guest, and what is told of both."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.backends.qemu.core.state import GuestRules
from agent.backends.qemu.reading import ORDER_DEADLINE_S
from agent.core.ports import ResizeRefusedError
from tests.support.amounts import MIB
from tests.support.qemu import BLOCK, CPU_KIND, FakeDimm, FakeVirtioMem
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.guests import BASE, amount, booted, guests

# ---------------------------------------------------------------- vCPUs


@virtually
async def test_growth_takes_the_lowest_free_slot_as_qemu_names_it_and_the_guest_brings_it_online(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 0))
        where = {"driver": CPU_KIND, "socket-id": 0, "thread-id": 0}
        assert made.sent("device_add") == [
            {**where, "id": "parley-cpu-1", "core-id": 1},
            {**where, "id": "parley-cpu-2", "core-id": 2},
        ]
        orders = made.qemu.guest.orders
        assert (orders[-1].generation, orders[-1].online_cpus) == (life.fencing.generation, 3)
        numbers = [order.sequence_number for order in orders]
        assert numbers == sorted(set(numbers)), "each order is newer than those before it"


@virtually
async def test_a_vcpu_that_was_taken_offline_is_brought_online_again_and_none_is_ever_taken_out(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        for cpus in (4, 1, 3, 2, 4):
            await life.reach(amount(cpus, 0))
        assert made.qemu.is_alive
        assert len(made.sent("device_add")) == 3
        assert made.sent("device_del") == []


@virtually
async def test_where_the_settings_allow_it_vcpus_are_taken_out_and_qemu_is_asked_whether_they_are(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path, rules=GuestRules(unplugs_cpus=True)) as made:
        made.qemu.aborts_after_unplug = False
        life = await made.life()
        await life.reach(amount(4, 0))
        await life.reach(amount(2, 0))
        await life.until(lambda _: life.page()["vcpusPlugged"] == 2)
        assert made.sent("device_del") == [{"id": "parley-cpu-3"}, {"id": "parley-cpu-2"}]
        await life.reach(amount(3, 0))


@virtually
async def test_vcpus_that_others_have_plugged_in_are_never_taken_out(tmp_path: Path) -> None:
    async with guests(tmp_path, rules=GuestRules(unplugs_cpus=True)) as made:
        made.qemu.aborts_after_unplug = False
        made.qemu.cpus[3] = "theirs"
        made.qemu.guest.present = made.qemu.guest.online = 2
        life = await made.life()
        await life.reach(amount(4, 0))
        await life.reach(amount(1, 0))
        await life.until(lambda _: life.page()["vcpusPlugged"] == 2)
        await asyncio.sleep(10)
        assert made.qemu.cpus == ["boot", None, None, "theirs"]


@virtually
async def test_vcpus_that_never_come_online_are_told_and_do_not_count(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        made.qemu.guest.keeps_cpus_offline = True
        await life.resize(amount(2, 0))
        seen = await life.until(lambda seen: seen.refusal is not None)
        assert seen.size == amount(1, 0)
        assert "the guest has 1 of 2 vCPUs online" in str(seen.refusal)


@virtually
async def test_vcpus_of_a_guest_that_cannot_switch_them_count_no_longer_than_they_are_wanted(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        made.qemu.guest.is_unable = True
        await life.resize(amount(2, 0))
        seen = await life.until(lambda seen: seen.refusal is not None)
        assert "CPUs cannot be switched here" in str(seen.refusal)
        assert (seen.size, seen.target) == (amount(1, 0), amount(2, 0))
        await life.resize(amount(1, 0))
        await life.until(lambda seen: seen.size == seen.target == amount(1, 0) and seen.refusal is None)


# ---------------------------------------------------------------- a guest that is silent


@virtually
async def test_all_plugged_vcpus_count_once_a_guest_is_silent_and_until_it_acknowledges_this_life(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 0))
        await life.reach(amount(1, 0))
        guest = made.qemu.guest
        guest.is_silent = True
        await asyncio.sleep(1.5)
        assert (await life.observe()).size == amount(1, 0), "an answer counts for a while"
        await asyncio.sleep(2)
        assert (await life.observe()).size == amount(3, 0)
        assert life.page()["vcpusOnline"] is None
        guest.is_silent = False
        guest.begin_anew()
        await life.until(lambda seen: seen.size == amount(1, 0), 3.0)
        assert guest.generation == life.fencing.generation


@virtually
async def test_a_silent_guest_holds_up_neither_a_fence_nor_memory(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.guest.is_silent = True
        begun_s = now_s()
        life = await made.life()
        await life.resize(amount(2, 2))
        await life.until(lambda seen: seen.size == amount(2, 2))
        assert now_s() - begun_s < 1.0
        assert life.page()["pending"].startswith("its informant is silent: connection refused")


@virtually
async def test_a_guest_that_takes_orders_of_a_later_life_is_not_believed_and_the_next_fence_is_above_it(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(2, 0))
        made.qemu.guest.generation += 7
        made.qemu.guest.online = 1
        await life.until(lambda _: life.page()["vcpusOnline"] is None)
        assert (await life.observe()).size == amount(2, 0)
        await life.fence()
        assert life.fencing.generation == made.qemu.guest.generation
        await life.until(lambda seen: seen.size == amount(2, 0) and life.page()["vcpusOnline"] == 2)


# ---------------------------------------------------------------- DIMMs


@virtually
async def test_memory_counts_as_soon_as_it_is_plugged_and_is_told_where_the_guest_does_not_use_it(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        made.qemu.guest.ignores_memory = True
        assert (await life.reach(amount(1, 1))).refusal is None
        seen = await life.until(lambda seen: seen.refusal is not None)
        assert seen.refusal == "the guest uses 512Mi of the 640Mi that are plugged in"
        assert seen.size == amount(1, 1)
        assert (life.page()["memoryPlugged"], life.page()["memoryUsable"]) == ("640Mi", "512Mi")


@virtually
async def test_a_plug_that_was_cut_off_in_its_middle_is_repaired(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.backends["parley-mem-1"] = BLOCK
        life = await made.life()
        await life.until(lambda _: "parley-mem-1" not in made.qemu.backends)
        await life.reach(amount(1, 2))
        assert [dimm.id for dimm in made.qemu.dimms] == ["parley-dimm-1", "parley-dimm-2"]


@virtually
async def test_what_others_have_plugged_in_counts_and_stays(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.dimms.append(FakeDimm("theirs", "their-memory", BLOCK))
        made.qemu.guest.memory_bytes += BLOCK
        life = await made.life()
        assert (await life.observe()).size == amount(1, 1)
        await life.reach(amount(1, 2))
        with pytest.raises(ResizeRefusedError, match="not ours"):
            await life.resize(amount(1, 0))
        await life.reach(amount(1, 1))
        assert [dimm.id for dimm in made.qemu.dimms] == ["theirs"]


@virtually
async def test_an_eject_that_hangs_is_told_and_holds_back_the_others_and_what_is_wanted_again_is_plugged_anew_when_it_has_gone(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(1, 3))
        made.qemu.guest.spares_memory = False
        await life.resize(amount(1, 1))
        await asyncio.sleep(1)
        assert life.page()["memorySlots"] == {"plugged": 2, "ejecting": 1, "free": 5}
        assert (await life.observe()).refusal is None
        seen = await life.until(lambda seen: seen.refusal is not None)
        assert seen.size == amount(1, 3)
        assert seen.refusal is not None
        assert seen.refusal.startswith("the guest has not given up parley-dimm-3 for 1")
        assert made.sent("device_del") == [{"id": "parley-dimm-3"}]
        await life.resize(amount(1, 3))
        assert (await life.observe()).refusal is None
        made.qemu.guest.spares_memory = True
        await life.until(lambda seen: seen.size == amount(1, 2), 3.0)
        await life.until(lambda seen: seen.size == amount(1, 3), 3.0)


@virtually
async def test_a_dimm_that_the_guest_refuses_to_give_up_is_told(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(1, 1))
        made.qemu.guest.refuses_ejects = True
        await life.resize(amount(1, 0))
        seen = await life.until(lambda seen: seen.refusal is not None, 1.0)
        assert seen.refusal == "the guest refuses to give up parley-dimm-1 (ACPI status 130)"
        assert life.page()["memorySlots"]["ejecting"] == 0
        made.qemu.guest.refuses_ejects = False
        await life.until(lambda seen: seen.size == amount(1, 0), 10.0)


@virtually
async def test_a_later_life_knows_which_dimm_is_being_ejected(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(1, 2))
        made.qemu.guest.spares_memory = False
        await life.resize(amount(1, 1))
        await asyncio.sleep(6)
        life = await made.restarted(life)
        assert life.page()["memorySlots"]["ejecting"] == 1
        await asyncio.sleep(5)
        assert "parley-dimm-2" in str((await life.observe()).refusal)
        assert len(made.sent("device_del")) == 1


# ---------------------------------------------------------------- virtio-mem


@virtually
async def test_a_virtio_mem_device_moves_in_parts_and_one_that_has_given_up_is_asked_for_another_size(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        made.qemu.virtio = FakeVirtioMem(0, 0, 8 * BLOCK)
        life = await made.life()
        await life.reach(amount(1, 8))
        assert life.page()["provider"] == "virtio-mem"
        assert life.page()["memorySlots"] == {"plugged": 8, "ejecting": 0, "free": 0}
        made.qemu.guest.spares_memory = False
        await life.resize(amount(1, 2))
        seen = await life.until(lambda seen: seen.refusal is not None)
        assert seen.refusal == "the guest's virtio-mem device stays at 1Gi instead of 256Mi"
        assert life.page()["memorySlots"] == {"plugged": 2, "ejecting": 6, "free": 0}
        await asyncio.sleep(60)
        asked = [each["value"] for each in made.sent("qom-set")]
        others = [value for value in asked if value not in (8 * BLOCK, 2 * BLOCK)]
        assert set(others) == {2 * BLOCK - 2 * MIB}, "less than is wanted, never more"
        assert 2 <= len(others) <= 5, "with a back-off"
        made.qemu.guest.spares_memory = True
        await life.until(lambda seen: seen.size == amount(1, 2))


@virtually
async def test_what_a_virtio_mem_device_may_still_take_is_covered_by_the_target(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.virtio = FakeVirtioMem(
            0, 4 * BLOCK, 8 * BLOCK
        )  # an earlier life asked, and the guest has no driver
        life = await made.life()
        made.qemu.manners = booted().manners
        assert (await life.observe()).target.memory_bytes in (BASE, BASE + 4 * BLOCK)
        await life.until(lambda seen: seen.target == amount(1, 0))
        assert made.qemu.virtio.requested == 0


# ---------------------------------------------------------------- what a guest does late


@virtually
async def test_an_order_that_was_given_up_and_arrives_late_changes_nothing_after_a_newer_one(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life, guest = await made.life(), made.qemu.guest
        await life.reach(amount(4, 0))
        await life.reach(amount(1, 0))
        guest.late_s = ORDER_DEADLINE_S + 5
        await life.resize(amount(4, 0))
        await asyncio.sleep(1)
        await life.resize(amount(1, 0))
        guest.late_s = 0.0
        assert (await life.observe()).target == amount(4, 0), "the guest may still bring them online"
        await life.until(lambda seen: seen.target == amount(1, 0))
        seen = []
        guest.on_change.append(lambda: seen.append(guest.online))
        await asyncio.sleep(20)
        assert seen == []


@virtually
async def test_what_the_guests_kernel_is_at_for_an_earlier_life_is_covered_by_the_target(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life, guest = await made.life(), made.qemu.guest
        await life.reach(amount(2, 0))
        await life.reach(amount(1, 0))
        guest.manners = replace(guest.manners, online_s=8.0)  # longer than an informant waits with its answer
        await life.resize(amount(2, 0))
        await until(lambda: guest.coming_cpus == 2)
        await life.resize(amount(1, 0))
        life = await made.restarted(life)
        for _ in range(100):
            seen = await life.observe()
            assert amount(guest.coming_cpus, 0).fits_in(seen.size.max(seen.target))
            await asyncio.sleep(0.1)
        await life.until(lambda seen: seen.size == seen.target == amount(1, 0))
