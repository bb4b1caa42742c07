"""Two schedulers on a real API server: who leads, who takes over, and that the same room is never given twice."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from hosting.kubernetes import names
from hosting.kubernetes.resources import VIRTUAL_MACHINES
from labs.clusters.control_plane import ControlPlane
from protocol.extension import AGENT_HEADER
from tests.support.kube.asking import Holdings, PodAgent, PodCrowd
from tests.support.kube.neonvm import install, machine
from tests.support.kube.objects import MERGE, Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.schedulers import create_pod, leads, start_scheduler
from tests.support.processes import fetch, post
from tests.support.waiting import shown_blocking

SHIFTED: Final = """
import datetime, time
from hosting.kubernetes import lease
class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(hours=1)
lease.datetime = Shifted
real = time.time
time.time = lambda: real() + 3600
from scheduler.program import main
main()
"""
"""A scheduler whose clock is an hour fast."""


def test_the_same_room_is_never_given_twice(
    parley: ParleyPrograms, objects: Objects, bare_nodes: list[str]
) -> None:
    """Killed, paused and resumed, ended in order, and with a clock that is an hour fast."""
    node = bare_nodes[0]
    pods = [
        create_pod(
            objects,
            pod(
                f"p{number}",
                node=node,
                requests={"cpu": "250m", "memory": "256Mi"},
                labels={names.ENABLED: "true"},
            ),
        )
        for number in range(4)
    ]
    a = start_scheduler(parley, objects, "a")
    shown_blocking("a leads", lambda: leads(a))
    b = start_scheduler(parley, objects, "b", code=SHIFTED)
    shown_blocking("b is ready", lambda: fetch(b, "/readyz"))

    holdings = Holdings(4000)
    agents = [PodAgent(each, [a, b], holdings, 250) for each in pods]
    with PodCrowd(agents, most_milli=3000) as crowd:
        shown_blocking("all are served", lambda: crowd.have_heard(a, 0))
        status, answer = post(b, b"{}", **{AGENT_HEADER: "anybody"})
        assert (status, json.loads(answer)["leader"]) == (503, f"http://127.0.0.1:{a}")

        epoch = crowd.epoch
        parley.kill("a")
        shown_blocking("b serves all", lambda: crowd.have_heard(b, epoch))

        parley.again("a")
        shown_blocking("a is ready", lambda: fetch(a, "/readyz"))
        epoch = crowd.epoch
        parley.pause("b")
        shown_blocking("a serves all", lambda: crowd.have_heard(a, epoch))
        parley.resume("b")
        assert PodAgent(pods[0], [b], Holdings(4000), 0).status_of(3000) == 503, "before it has noticed"
        shown_blocking("b has noticed", lambda: not leads(b))

        epoch = crowd.epoch
        assert parley.running["a"].end() == 0
        shown_blocking("b serves all again", lambda: crowd.have_heard(b, epoch))
        shown_blocking("somebody has grown", lambda: max(holdings.held.values()) > 1000)
    assert holdings.faults == []


def test_an_epoch_that_others_have_seen_is_exceeded(
    parley: ParleyPrograms, objects: Objects, bare_nodes: list[str]
) -> None:
    """As after the Lease was deleted together with what it counted."""
    created = create_pod(objects, pod("p", node=bare_nodes[0], labels={names.ENABLED: "true"}))
    port = start_scheduler(parley, objects, "a")
    agent = PodAgent(created, [port], Holdings(4000), 500)
    shown_blocking("it decides", lambda: agent.ask(500))
    agent.epoch += 1000
    seen = agent.epoch

    assert agent.ask(500) is None, "nobody decides below an epoch that was seen"
    shown_blocking("it decides again", lambda: agent.ask(500))
    assert agent.epoch > seen


def _reserved(port: int, node: str) -> tuple[str, int]:
    page: dict[str, Any] = json.loads(fetch(port, f"/v1/nodes/{node}"))
    return page["reserved"]["cpu"], len(page["rows"])


def test_a_restart_with_many_pods_and_vms_has_its_ledger_before_the_first_permit(
    parley: ParleyPrograms, objects: Objects, bare_nodes: list[str], control_plane: ControlPlane
) -> None:
    install(control_plane)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _with_vm(objects, bare_nodes[number % 4], number), range(500)))
    asked = create_pod(objects, pod("asked", node=bare_nodes[0], labels={names.ENABLED: "true"}))
    port = start_scheduler(parley, objects, "a")

    def answers() -> bool:
        return PodAgent(asked, [port], Holdings(4000), 500).ask(500) is not None

    for _ in range(2):
        shown_blocking("a first answer", answers)
        # 125 VMs whose agents were not heard yet, each at its maximum of 2 CPUs.
        assert _reserved(port, bare_nodes[1]) == ("250", 125)
        assert json.loads(fetch(port, "/v1/audit")) == {"faults": []}
        parley.kill("a")
        parley.again("a")


def _with_vm(objects: Objects, node: str, number: int) -> None:
    runner, vm, one = f"runner{number}", f"vm{number}", {"min": 1, "max": 2, "use": 1}
    requests, labels = {"cpu": "10m", "memory": "1Mi"}, {names.NEON_VM_NAME: vm}
    create_pod(objects, pod(runner, node=node, requests=requests, labels=labels))
    body = machine(vm, one, one, labels={names.NEON_ENABLED: "true"})
    objects.plane.call("POST", VIRTUAL_MACHINES.path(objects.namespace), body)
    status = {"podName": runner, "node": node, "phase": "Running", "cpus": 1, "memorySize": "1Gi"}
    path = VIRTUAL_MACHINES.path(objects.namespace, vm, "status")
    objects.plane.call("PATCH", path, {"status": status}, MERGE)
