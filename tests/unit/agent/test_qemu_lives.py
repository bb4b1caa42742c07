"""Lives of an agent over one QEMU guest, boots and ends of the guest, and what of it others are shown."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.backends.change_log import FILE_NAME
from agent.backends.qemu.core.machine import PlugCpu
from agent.backends.qemu.core.report import observation
from agent.backends.qemu.core.state import GuestRules, GuestView, StepPhase, StepTrack
from agent.core.ports import BackendError, FencedOffError, ResizeRefusedError
from protocol.values import Resources
from tests.support.amounts import GIB
from tests.support.qemu import BLOCK, rebooted
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.guests import BASE, amount, guests


@virtually
async def test_when_qemu_ends_every_look_fails_at_once_and_the_runner_is_told(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        looking = asyncio.create_task(life.observe())
        await asyncio.sleep(0.001)
        ended_s = now_s()
        made.qemu.quit()
        with pytest.raises(BackendError, match="the VM is gone: QEMU has closed QMP"):
            await looking
        assert life.moved[-1] == ended_s == now_s()
        with pytest.raises(BackendError):
            await life.resize_over(amount(1, 0), amount(2, 0))
        assert life.backend.machine("default/vm-a") is None
        await asyncio.sleep(30)
        # Once, and before the first size of the machine that runs there next.
        assert [line["kind"] for line in made.changes()].count("gone") == 1
        assert made.changes()[-1]["kind"] == "gone"
        await made.qemu.guest.close()
        made.qemu = rebooted(made.qemu, 1)
        await asyncio.sleep(6)
        last = {line["kind"]: line["cpu"] for line in made.changes()[-2:]}
        assert last == {"size": 1000, "target": 1000}


@virtually
async def test_a_vm_that_is_booted_anew_begins_with_its_size_as_its_target(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 3))
        made.qemu.quit()
        await asyncio.sleep(0.1)
        await made.qemu.guest.close()
        made.qemu = rebooted(made.qemu, 2)
        await asyncio.sleep(6)
        seen = await life.observe()
        assert seen.size == seen.target == amount(1, 0)
        await life.reach(amount(2, 1))


@virtually
async def test_a_guest_that_boots_anew_within_its_machine_is_not_believed_until_it_has_told_again(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life, guest = await made.life(), made.qemu.guest
        await life.reach(amount(3, 1))
        await life.reach(amount(1, 1))
        made.qemu.reset()
        assert (await life.observe()).size == amount(3, 1), "its kernel has brought all of them online"
        await asyncio.sleep(8)
        guest.is_silent = False
        await life.until(lambda seen: seen.size == seen.target == amount(1, 1))
        assert guest.online == 1


@virtually
async def test_a_machine_that_tells_no_boot_from_another_is_refused(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.uuid = "00000000-0000-0000-0000-000000000000"
        with pytest.raises(BackendError, match="start QEMU with -uuid"):
            await made.life()


@virtually
async def test_an_earlier_life_gives_the_connection_up_when_it_is_fenced_off(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        old = await made.life()
        await old.reach(amount(2, 1))
        new = await made.life()
        with pytest.raises(FencedOffError):
            await old.observe()
        await new.reach(amount(3, 2))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Resources(1500, BASE), "whole vCPUs"),
        (amount(5, 0), "room for 4 vCPUs"),
        (amount(1, -1), "there at its boot"),
        (Resources(1000, BASE + BLOCK // 2), "pieces of 128Mi"),
        (amount(1, 9), "room for 1536Mi"),
    ],
)
def test_a_target_that_cannot_be_had_is_refused_with_its_reason(
    target: Resources, why: str, tmp_path: Path
) -> None:
    @virtually
    async def is_refused() -> None:
        async with guests(tmp_path) as made:
            life = await made.life()
            with pytest.raises(ResizeRefusedError, match=why):
                await life.resize(target)
            assert (await life.observe()).target == amount(1, 0)

    is_refused()


@virtually
async def test_a_file_that_cannot_be_read_stops_everything_and_is_told(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        (tmp_path / "qemu" / "default.vm-a.json").write_text("{")
        await asyncio.sleep(2)
        with pytest.raises(BackendError, match="is no file of a guest"):
            await life.observe()


@virtually
async def test_a_target_that_could_not_be_written_is_in_the_log_no_longer_than_until_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()

        def fails(*_: object) -> None:
            raise BackendError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(made.files, "write", fails)
            with pytest.raises(BackendError, match="no space"):
                await life.resize(amount(2, 1))
        assert (await life.observe()).target == amount(1, 0)
        lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
        targets = [Resources(line["cpu"], line["memory"]) for line in lines if line["kind"] == "target"]
        assert targets[-2:] == [amount(2, 1), amount(1, 0)]


@virtually
async def test_a_fence_below_what_the_guest_has_taken_is_repeated_above_it(tmp_path: Path) -> None:
    """The guest came from another host, whose clock is ahead."""
    async with guests(tmp_path) as made:
        made.qemu.guest.generation = 10**6
        life = await made.life()
        assert life.fencing.generation > 10**6
        await life.reach(amount(2, 0))
        await life.reach(amount(1, 0))


@virtually
async def test_the_runner_is_told_of_a_growth_when_it_has_happened_and_not_asked_to_poll(
    tmp_path: Path,
) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await asyncio.sleep(1)
        told = len(life.moved)
        await life.resize(amount(2, 1))
        await asyncio.sleep(1)
        assert 2 <= len(life.moved) - told <= 4, "for the target, the memory and the vCPU"
        assert life.backend.capabilities.look_every_s >= 1


@virtually
async def test_a_guest_that_is_still_booting_takes_up_what_was_plugged_in_meanwhile(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        made.qemu.guest.is_silent = True
        life = await made.life()
        await life.resize(amount(2, 1))
        await asyncio.sleep(4)
        made.qemu.guest.is_silent = False
        await life.until(lambda _: life.page()["vcpusOnline"] == 2)
        assert life.page()["pending"] is None


@virtually
async def test_what_is_plugged_and_what_the_guest_uses_are_two_metrics(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 1))
        await life.reach(amount(2, 1))
        cpus, memory = life.backend.families()
        name = "default/vm-a"
        assert cpus.samples == (((name, "plugged"), 3.0), ((name, "online"), 2.0))
        assert [value for _, value in memory.samples] == [BASE + BLOCK, BASE + BLOCK]
        made.qemu.guest.is_silent = True
        await asyncio.sleep(4)
        assert [labels for labels, _ in next(life.backend.families()).samples] == [(name, "plugged")]


def test_amounts_of_these_stories_are_whole_slots() -> None:
    assert (GIB - BASE) % BLOCK == 0


# ---------------------------------------------------------------- what a guest tells is not taken for more than it can be


@virtually
async def test_a_vm_that_is_taken_out_right_after_its_end_uses_nothing_by_the_log(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 1))
        made.qemu.quit()
        await until(lambda: life.backend.machine("default/vm-a") is None)
        await life.backend.forget("default/vm-a")
        assert made.changes()[-1]["kind"] == "gone"


@virtually
async def test_a_new_life_logs_no_size_before_the_guests_first_word(tmp_path: Path) -> None:
    """Before that word all plugged vCPUs would count, and three of these four are offline."""
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(4, 0))
        await life.reach(amount(1, 0))
        known = len(made.changes())
        life = await made.restarted(life)
        await asyncio.sleep(5)
        assert {line["cpu"] for line in made.changes()[known:]} <= {1000}
        made.qemu.guest.is_silent = True
        await made.restarted(life)
        await asyncio.sleep(5)
        sizes = [line["cpu"] for line in made.changes() if line["kind"] == "size"]
        assert sizes[-1] == 4000, "all plugged vCPUs count where the guest is silent"


@virtually
async def test_more_vcpus_than_qemu_has_room_for_are_not_believed(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life, guest = await made.life(), made.qemu.guest
        guest.online = 4096
        await life.until(lambda seen: seen.size.vcpu_milli > 1000)
        seen = await life.observe()
        assert seen.size.vcpu_milli == 4000
        guest._brings_online = True
        await asyncio.sleep(3)
        assert (await life.observe()).target.vcpu_milli <= 4000


@virtually
async def test_a_vcpu_that_is_online_before_its_kernel_is_done_counts_once(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life, guest = await made.life(), made.qemu.guest
        await life.reach(amount(2, 0))
        guest._brings_online = True
        await asyncio.sleep(3)
        assert (await life.observe()).target == amount(2, 0)
        assert max(line["cpu"] for line in made.changes()) == 2000


@virtually
async def test_a_vcpu_whose_plug_a_look_shows_already_counts_once_in_a_silent_guest(tmp_path: Path) -> None:
    """As after a stop of the agent: the guest's last word is too old, and a look that began before the plug ended shows its outcome."""
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(2, 0))
        known = life.backend._loops["default/vm-a"].known
        assert known is not None
        plug = PlugCpu(known.look.cpus[1], "parley-cpu-1")
        silent = replace(known, cpu=StepTrack(plug, StepPhase.ENDED), guest=GuestView())
        assert observation(silent, now_s()).target == amount(2, 0)
        another = PlugCpu(known.look.cpus[2], "parley-cpu-2")
        silent = replace(silent, cpu=StepTrack(another))
        assert observation(silent, now_s()).target == amount(3, 0)


@virtually
async def test_a_vcpu_that_the_guest_does_not_give_up_holds_back_no_memory(tmp_path: Path) -> None:
    async with guests(tmp_path, rules=GuestRules(unplugs_cpus=True)) as made:
        life = await made.life()
        await life.reach(amount(2, 2))
        made.qemu.keeps_cpus = True
        await life.resize(amount(1, 2))
        await until(lambda: made.sent("device_del") != [])
        await life.until(lambda seen: seen.size == amount(1, 2))
        await life.resize(amount(1, 0))
        await life.until(lambda seen: seen.size == amount(1, 0))


@virtually
async def test_a_plug_that_fails_for_ever_keeps_no_vcpu_offline_that_is_there(tmp_path: Path) -> None:
    async with guests(tmp_path) as made:
        life = await made.life()
        await life.reach(amount(3, 0))
        await life.reach(amount(1, 0))
        made.qemu.refuses_plugs = True
        await life.resize(amount(4, 0))
        await life.until(lambda seen: seen.size == amount(3, 0))


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([("virtio-mem", "a"), ("virtio-mem", "b")], "2 virtio-mem devices"),
        ([("nvdimm", "a")], "a memory device of type nvdimm"),
    ],
)
def test_memory_that_would_be_counted_nowhere_is_refused(
    devices: list[tuple[str, str]], told: str, tmp_path: Path
) -> None:
    @virtually
    async def is_refused() -> None:
        async with guests(tmp_path) as made:
            made.qemu.more_memory = [
                {
                    "type": kind,
                    "data": {
                        "id": name,
                        "size": 0,
                        "requested-size": 0,
                        "block-size": BLOCK,
                        "max-size": BLOCK,
                    },
                }
                for kind, name in devices
            ]
            with pytest.raises(BackendError, match=told):
                await made.life()

    is_refused()
