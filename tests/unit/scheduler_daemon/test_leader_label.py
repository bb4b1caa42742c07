"""The label of the leader is on one pod: the one that leads."""

import random
from typing import Any

from hosting.kubernetes import names, objects
from hosting.kubernetes.resources import PODS
from scheduler.daemon.leader_label import LeaderLabel
from tests.support.kube_api import FakeApiServer, writes
from tests.support.servers import QUIET
from tests.support.virtual_time import virtually

BOTH = {names.ROLE: names.LEADER, "name": "autoscale-scheduler"}


def _world() -> tuple[FakeApiServer, LeaderLabel]:
    server = FakeApiServer()
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "x", **BOTH})):
        server.put(PODS, {"metadata": {"namespace": "ns", "name": name, "labels": labels}, "spec": {}})
    return server, LeaderLabel(server.api(), ("ns", "a"), BOTH["name"], random.Random(1), QUIET)


def _labels(server: FakeApiServer, name: str) -> Any:
    return objects.labels(server.get(PODS, "ns", name))


@virtually
async def test_the_leader_takes_the_label_from_others() -> None:
    server, label = _world()
    server.fail("status", writes, times=2)

    await label.put()

    assert _labels(server, "a") == {"app": "x", **BOTH}
    assert _labels(server, "b") == {"app": "x"}


@virtually
async def test_whoever_leads_no_more_has_no_label() -> None:
    server, label = _world()
    await label.put()
    await label.remove()
    assert _labels(server, "a") == {"app": "x"}

    server.is_down = True
    await label.remove()  # the next leader does it
