"""A real guest that is starved by its workload: the informant answers, and none of its children fails."""

from tests.vm.guest.inside import GROUP
from tests.vm.guest.lab import Lab

CALLS = 5
BURNERS = 16
BOMB_PROCESSES = 500
NEAR_LIMIT_MIB = 270
TOO_MUCH_MIB = 700
FREEZES = 4


async def _answers(lab: Lab) -> None:
    for _ in range(CALLS):
        assert (await lab.get("/healthz")).status == 200


async def test_healthz_is_answered_under_busy_vcpus_a_fork_bomb_and_without_memory(lab: Lab) -> None:
    pid = await lab.inside.informant_pid()
    await lab.plugs.add_vcpu()
    await lab.has_vcpus(generation=1, count=2)
    await lab.inside.burn(BURNERS)
    await _answers(lab)
    await lab.inside.kill_workload()
    await lab.inside.text(f"echo {BOMB_PROCESSES} > {GROUP}/pids.max")
    await lab.inside.script("bomb", "while :; do sh /run/bomb & done")
    await lab.inside.start("sh /run/bomb")
    await lab.inside.until(f"[ $(cat {GROUP}/pids.current) -ge {BOMB_PROCESSES * 3 // 4} ]")
    await _answers(lab)
    await lab.inside.kill_workload()
    await lab.inside.hog(TOO_MUCH_MIB)
    await lab.agent.hears_a_wish("memory")
    await _answers(lab)
    await lab.inside.until("! kill -0 $(cat /run/hog/pid)")
    assert set(await lab.inside.kills()) == {"CONSTRAINT_MEMCG"}
    assert await lab.inside.informant_pid() == pid


async def test_freezes_under_load_end_and_fail_no_child(lab: Lab) -> None:
    await lab.inside.hog(NEAR_LIMIT_MIB)
    await lab.inside.held(NEAR_LIMIT_MIB)
    await lab.inside.burn(2)
    await lab.inside.script("reader", "while :; do cat /dev/vda > /dev/null; done")
    await lab.inside.start("sh /run/reader")  # fills what is left with page cache, again and again
    await lab.more("parley_informant_freezes_total", FREEZES, "freezes")
    await lab.inside.kill_workload()
    await lab.inside.until(f"grep -q 0 {GROUP}/cgroup.freeze")
    assert await lab.inside.kills() == []
