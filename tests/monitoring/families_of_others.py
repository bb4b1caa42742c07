"""A page of metrics that need what is not on this machine (Kubernetes, kube-scheduler, QEMU, node plugins): the programs' own families, in the program's
own format, of things that are at rest."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from agent.backends.qemu.backend import guest_families
from agent.daemon import node_plugins, qos
from hosting import logs, metrics
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.metrics import AnyFamily
from hosting.server import Reply, Request
from scheduler.daemon.leader import leading_family
from scheduler.placing.cycle.attempt import Frameworks
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.scheduler import PodScheduler
from scheduler.placing.kube_extender.operations import ExtenderStats
from tests.support.pages import AgentPage, paged


def _families() -> Iterator[AnyFamily]:
    shared = SharedHooks(
        ExtenderPorts(cast("Any", None), cast("Any", None), lambda: 0.0), logs.logger("test")
    )
    scheduler = PodScheduler(
        Frameworks({}, shared), cast("Any", None), cast("Any", None), clock=lambda: 0.0, rng=random.Random(1)
    )
    yield leading_family(leads=True)
    yield from shared.families()
    yield from scheduler.families()
    yield from ExtenderStats().families(under_way=0, in_doubt=0, refused=0, told=0)
    yield from KubernetesApi(ApiCredentials(), user_agent="test").families()
    yield from node_plugins.families((), Counter())
    yield from qos.families(())
    yield from guest_families({}, 0.0)


async def _page() -> bytes:
    reply = await metrics.handler(_families)(cast("Request", None))
    assert isinstance(reply, Reply)
    return reply.body


@contextmanager
def page_of_others() -> Iterator[AgentPage]:
    with paged(200, asyncio.run(_page())) as page:
        yield page
