"""The metrics that the programs serve, and the alerts that judge by them."""

import random
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import yaml

from agent.backends.qemu.backend import guest_families
from agent.daemon import node_plugins, qos
from agent.daemon.callbacks import Callbacks
from agent.node.plugins.core.worlds import ActualStateOfWorld, DesiredStateOfWorld, Worlds
from agent.node.plugins.manager import plugins_families
from agent.peers.notices import NoticeListener
from agent.runner import stats
from hosting import logs
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.metrics import AnyFamily
from hosting.server import Server
from scheduler.daemon.leader import leading_family
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.answers import PermitStats
from scheduler.permits.service.metrics import families
from scheduler.permits.service.notices import NoticeBoard
from scheduler.placing.cycle.attempt import Frameworks
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.scheduler import PodScheduler
from scheduler.placing.kube_extender.operations import ExtenderStats
from scheduler.pools.service import PoolService, pool_families
from tests.tidy.repository import ROOT

ALERTS: Final = ROOT / "deploy" / "monitoring" / "alerts.yaml"


@dataclass(frozen=True, slots=True)
class ServedMetric:
    """A metric by its name on the page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def every_family() -> list[AnyFamily]:
    """The families of all programs, from parts that have done nothing yet."""
    server = Server(logs.logger("test"), ())
    core = Core(SchedulerConfig(uuid.UUID(int=1)))
    service = PoolService(core, core.apply, lambda: 0.0, logs.logger("test"))
    shared = SharedHooks(
        ExtenderPorts(cast("Any", None), cast("Any", None), lambda: 0.0), logs.logger("test")
    )
    scheduler = PodScheduler(
        Frameworks({}, shared), cast("Any", None), cast("Any", None), clock=lambda: 0.0, rng=random.Random(1)
    )
    return [
        *families(core, PermitStats(), server),
        *NoticeBoard(core.config.instance, core.config.epoch).families(),
        leading_family(leads=True),
        *pool_families(core.ledger, service.admission_queue, service.stats),
        *shared.families(),
        *scheduler.families(),
        *ExtenderStats().families(under_way=0, in_doubt=0, refused=0, told=0),
        *KubernetesApi(ApiCredentials(), user_agent="test").families(),
        *_listener().families(),
        *stats.families([], 0),
        *stats.state_families([]),
        *stats.latency_families(stats.Latencies()),
        *node_plugins.families((), Counter()),
        *_of_the_plugin_manager(),
        *Callbacks(list, logs.logger("test")).families(),
        *qos.families(()),
        *guest_families({}, 0.0),
    ]


def _listener() -> NoticeListener:
    nobody = cast("Any", None)
    return NoticeListener(nobody, nobody, "node", list, random.Random(1), logs.logger("test"))


def _of_the_plugin_manager() -> tuple[AnyFamily, ...]:
    desired = DesiredStateOfWorld(lambda: 0, lambda: "uid")
    worlds = Worlds(desired, ActualStateOfWorld(desired.table))
    worlds.desired.add_or_update_plugin("/plugins/a.sock")
    return plugins_families(worlds)


def shown(family: AnyFamily) -> str:
    return f"{family.name}_total" if family.kind == "counter" else family.name


def _of_informants() -> Iterator[ServedMetric]:
    """Informants write their few figures themselves: docs/guides/informant.md says what they mean, and its own test compares it with the program."""
    page = (ROOT / "docs" / "guides" / "informant.md").read_text()
    for cell, meaning in re.findall(r"^\| (`parley_[^|]*) \| ([^|]+) \|$", page, re.MULTILINE):
        for name, labels in re.findall(r"(parley_informant_\w+)(?:\{([^}]*)\})?", cell):
            kind = "counter" if name.endswith("_total") else "gauge"
            yield ServedMetric(name, kind, tuple(filter(None, labels.split(","))), meaning)


def served() -> list[ServedMetric]:
    found = {each.name: each for each in _of_informants()} | {
        shown(each): ServedMetric(shown(each), each.kind, tuple(each.labels), each.help)
        for each in every_family()
    }
    return [found[name] for name in sorted(found)]


def alerts_by_metric() -> Mapping[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    if ALERTS.exists():
        for group in yaml.safe_load(ALERTS.read_text())["groups"]:
            for rule in group["rules"]:
                names = set(re.findall(r"\bparley_\w+", rule["expr"])) if "alert" in rule else set()
                for name in sorted(names):
                    found[re.sub(r"_(bucket|sum|count)$", "", name)].append(rule["alert"])
    return found
