"""docs/operations.md lists exactly the metrics that the programs serve."""

import random
import re
import uuid
from collections import Counter
from typing import Any, cast

from agent.daemon import plugin_page, qos_page, status
from agent.runner.stats import Latencies
from hosting import logs
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.metrics import AnyFamily
from hosting.server import Server
from scheduler.core.core import Core
from scheduler.core.state import SchedulerConfig
from scheduler.daemon.leader import leading_family
from scheduler.extender.stats import ExtenderStats
from scheduler.framework.cycle.attempt import Extenders
from scheduler.framework.cycle.scheduler import PodScheduler
from scheduler.framework.extension.shared import SharedExtension
from scheduler.permits.metrics import families
from scheduler.permits.stats import PermitStats
from scheduler.pools.http.metrics import pool_families
from scheduler.pools.service import PoolService
from tests.tidy.repository import ROOT


def shown(family: AnyFamily) -> str:
    """The family's name on a page."""
    return f"{family.name}_total" if family.kind == "counter" else family.name


def test_the_documented_metrics_are_those_that_are_served() -> None:
    """In both directions, with their labels."""
    server = Server(logs.logger("test"), ())
    core = Core(SchedulerConfig(uuid.UUID(int=1)))
    service = PoolService(core, core.apply, lambda: 0.0, logs.logger("test"))
    shared = SharedExtension(cast("Any", None), logs.logger("test"))
    scheduler = PodScheduler(
        Extenders({}, shared), cast("Any", None), cast("Any", None), clock=lambda: 0.0, rng=random.Random(1)
    )
    served = [
        *families(core, PermitStats(), server),
        leading_family(leads=True),
        *pool_families(core.ledger, service.admission_queue, service.stats),
        *shared.families(),
        *scheduler.families(),
        *ExtenderStats().families(under_way=0, in_doubt=0, refused=0, told=0),
        *KubernetesApi(ApiCredentials(), user_agent="test").families(),
        *status.families([], 0),
        *status.state_families([]),
        *status.latency_families(Latencies()),
        *plugin_page.families((), Counter()),
        *qos_page.families(()),
    ]
    documented = dict(
        re.findall(r"^\| `(parley_\w+)` \|([^|]*)\|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    )
    assert {shown(family) for family in served} == set(documented)
    for family in served:
        assert re.findall(r"`(\w+)`", documented[shown(family)]) == list(family.labels)
