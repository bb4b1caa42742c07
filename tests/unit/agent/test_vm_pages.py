"""The agent's page describes each VM."""

import json
from typing import Any, cast

from msgspec.structs import replace

from agent.core.model import ContainersSeen, PodObservation
from agent.daemon import vm_pages
from agent.daemon.vm_pages import VmNotes
from agent.runner import stats
from hosting import metrics
from hosting.server import Reply, Request
from protocol.reasons import Reason, ReasonCode
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.driver import APART, FULL, grant
from tests.unit.agent.peers import World, running


@virtually
async def test_a_vm_is_told_with_what_happened_and_why_it_is_denied_but_not_with_its_registration() -> None:
    made = World()

    def told() -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(vm_pages.vm_page(made.runner, now_s=now_s())))

    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        await until(lambda: made.runner.state.informant.version is not None, beside=task)
        page = vm_pages.vm_page(made.runner)
        assert {"Started", "Fenced", "Registered"} <= {each["event"] for each in json.loads(page)["journal"]}
        assert str(made.runner.state.informant.registration).encode() not in page
        made.scheduler.script = [lambda request: grant(request, cu(2), sent_s=now_s(), reasons=FULL)] * 9999
        made.policy.units = 3
        await until(lambda: told()["reasonCode"] == "node-headroom", beside=task)
        assert told()["reason"] == "node-headroom: the node is full"
        made.policy.units = 2
        await until(lambda: told()["state"] == "ok", beside=task)
        assert made.runner.state.scheduler.reasons, "the refusal stands until another answer comes"
        planned = made.runner.last_plan
        assert planned is not None
        assert (told()["reasonCode"], told()["reason"]) == (None, str(planned.reason))
        assert (told()["tied"], told()["goalReasons"]) == (True, {"cpu": "decree", "memory": "decree"})


@virtually
async def test_of_a_vm_that_is_apart_each_resource_has_its_reason_and_one_line_says_what_matters() -> None:
    made = World(APART)
    made.policy.memory = 2

    def told() -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(vm_pages.vm_page(made.runner, now_s=now_s())))

    async with running(made) as task:
        await until(lambda: told()["reason"] == "CPU: decree; memory: what memory needs", beside=task)
        assert (told()["tied"], told()["goalReasons"]) == (
            False,
            {"cpu": "decree", "memory": "what memory needs"},
        )
        full = (Reason(ReasonCode.NODE_HEADROOM, "the node is full", "cpu"),)
        made.scheduler.script = [
            lambda request: grant(request, cu(2, 3), sent_s=now_s(), reasons=full)
        ] * 9999
        made.policy.units = made.policy.memory = 3
        await until(lambda: told()["reasonCode"] == "node-headroom", beside=task)
        assert told()["reason"] == "node-headroom (cpu): the node is full"
        assert told()["stateReasons"] == ["node-headroom (cpu): the node is full"]
        assert told()["permit"] == {"cpu": "2", "memory": "3Gi"}
        made.scheduler.script = []
        await until(lambda: made.backend.size == cu(3), beside=task)


@virtually
async def test_the_load_tells_how_much_of_the_last_period_tasks_waited() -> None:
    made = World()
    made.exporter.stalled = 0.25

    def told() -> dict[str, Any]:
        page = json.loads(vm_pages.vm_page(made.runner, now_s=now_s()))
        return page.get("load") or {}

    async with running(made) as task:
        await until(lambda: told().get("cpuPressure") is not None, beside=task)
        assert (told()["cpuPressure"], told()["memoryPressure"]) == (25.0, None)


def test_a_warning_is_added_to_those_of_a_vm() -> None:
    notes = VmNotes({"d/a": ("one",)}, {"d/c": ("why",)}).with_warnings({"d/a": "two", "d/b": "three"})
    assert notes == VmNotes({"d/a": ("one", "two"), "d/b": ("three",)}, {"d/c": ("why",)})


@virtually
async def test_containers_are_told_in_the_page_of_a_pod_and_in_the_metrics() -> None:
    made = World()
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        assert json.loads(vm_pages.vm_page(made.runner))["containers"] is None, "it is no pod"
        backend = made.runner.state.backend
        found = ContainersSeen("main is dead", "it differs", ("memory",), 3, (), "main ended: OOMKilled")
        seen = PodObservation(cu(2), cu(2), now_s(), None, found)
        made.runner.state = replace(
            made.runner.state, backend=replace(backend, observation=seen, judged=found)
        )
        assert json.loads(vm_pages.vm_page(made.runner))["containers"] == {
            "notRunning": "main is dead",
            "mismatch": "it differs",
            "mismatched": ["memory"],
            "restarts": 3,
            "lastEnd": "main ended: OOMKilled",
        }
        (short,) = json.loads(vm_pages.vms_page("node-a", "life-1", [made.runner]))["vms"]
        assert (short["mismatch"], short["counts"]["restarts"]) == ("it differs", 0)
        name = made.runner.vm.name
        made.runner.stats.ends.update(OOMKilled=2, Error=1)
        families = list(stats.families([made.runner], 0))
        samples = {each.name: each.samples for each in families}
        page = await metrics.handler(lambda: families)(Request("GET", "/metrics"))
        assert isinstance(page, Reply)
        ends = [line for line in page.body.decode().splitlines() if "container_ends_total{" in line]
        assert ends == [
            f'parley_agent_container_ends_total{{reason="{reason}",vm="{name}"}} {count}'
            for reason, count in (("Error", 1.0), ("OOMKilled", 2.0))
        ]
        assert samples["parley_agent_container_restarts"] == (((name,), 3.0),)
        assert samples["parley_agent_containers_down"] == (((name,), 1.0),)
        assert samples["parley_agent_cgroup_mismatch"] == (((name, "memory"), 1.0),)
