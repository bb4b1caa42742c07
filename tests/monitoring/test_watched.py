"""A real Prometheus over a real demo and a house with trouble: every query of the board and of the rules means what is there."""

import re
from collections import Counter
from typing import Final

import pytest

from tests.monitoring.prometheus_server import ROOT, Prometheus
from tests.monitoring.queries import (
    Query,
    board,
    board_queries,
    matched_labels,
    metric_of,
    rule_queries,
    rules,
)
from tests.support.waiting import shown_blocking

AT_REST: Final = "nothing of the kind happens: it is a fault, or takes longer than a test"
OTHERS: Final = "needs Kubernetes, kube-scheduler, QEMU or plugins, none of which runs here"
WITHOUT_SERIES: Final = {
    'parley_scheduler_requests_total{outcome=~"error|hang-up",code="overloaded"}': AT_REST,
    'parley_scheduler_pool_probes_total{outcome="deadline"}': AT_REST,
    'parley_scheduler_plugin_calls_total{outcome=~"Internal|"}': AT_REST,
    'parley_agent_vm_stuck{peer="scheduler"}': AT_REST,
    'parley_agent_plugins{state!~"registered|superseded"}': OTHERS,
    'parley_agent_strategies{state=~"stuck|backing-off"}': OTHERS,
    'parley_kubernetes_calls_total{outcome="unreachable"}': OTHERS,
    "parley_kubernetes_calls_total": OTHERS,
    'parley_scheduler_extender_calls_total{outcome=~"failed|late|malformed|overloaded"}': OTHERS,
    "parley_scheduler_extender_calls_total": OTHERS,
    "parley_agent_cgroup_mismatch": OTHERS,
    "parley_agent_guest_cpus": OTHERS,
    "parley_agent_guest_memory_bytes": OTHERS,
    "parley_scheduler_vm_condition": AT_REST,
}
"""Selectors that choose no series here, each with the reason. The metric itself is there all the same."""
TROUBLE: Final = {
    "ParleyTargetDown",
    "ParleyClusterStale",
    "ParleyConfigStale",
    "ParleyNodeOverFull",
    "ParleyNodeFull",
    "ParleyVmsUnsettled",
    "ParleyPoolUnknown",
    "ParleyPoolParked",
    "ParleyPoolSaturated",
    "ParleyVmStuck",
    "ParleyVmDenied",
    "ParleyGuestShort",
}
"""The troubles of the house: each of these alerts waits for its time, or fires."""
DEPENDS: Final = {"ParleyGrowthSlow", "ParleyPermitsSlow", "ParleyNobodyAsks"}
"""Alerts that may wait as well, on a busy machine or under a Prometheus that has only just begun to look."""
BUILT_IN: Final = {"up": ["job", "instance"], "ALERTS": ["alertname", "alertstate", "severity"]}
"""Prometheus makes these series itself, with these labels."""

BOARD: Final = {query.owner: query for query in board_queries()}
RULES: Final = {query.owner: query for query in rule_queries()}
ALL: Final = [*BOARD.values(), *RULES.values()]


def documented() -> dict[str, list[str]]:
    """The labels of every metric, as the page lists them; a tidy test compares it with the programs."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(parley_\w+)` \|[^|]*\|([^|]*)\|", page, re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", labels) for name, labels in rows}


def family_of(name: str) -> str:
    """A metric by the name that its family has on the page: a histogram's has no suffix."""
    return re.sub("_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("owner", [*BOARD, *RULES])
def test_prometheus_evaluates_every_query(prometheus: Prometheus, owner: str) -> None:
    """Also one that finds nothing now: `WITHOUT_SERIES` says why."""
    query = {**BOARD, **RULES}[owner]
    found = prometheus.query(query.expression)
    if owner in BOARD and not WITHOUT_SERIES.keys() & set(query.selectors()):
        assert found, "the panel stays empty"


@pytest.mark.parametrize("selector", sorted({each for query in ALL for each in query.selectors()}))
def test_every_selector_chooses_what_was_scraped(prometheus: Prometheus, selector: str) -> None:
    name = metric_of(selector)
    if name not in rules("record") and name not in BUILT_IN:
        # An informant's page says nothing of the kinds of its metrics: these are known by their series alone.
        assert family_of(name) in prometheus.families() or prometheus.series(name)
    assert bool(prometheus.series(selector)) != (selector in WITHOUT_SERIES)


@pytest.mark.parametrize("query", ALL, ids=lambda query: query.owner)
def test_every_label_belongs_to_a_metric_of_its_query(prometheus: Prometheus, query: Query) -> None:
    known: set[str] = {"alertname", "severity"}
    for selector in query.selectors():
        name = metric_of(selector)
        there = {label for series in prometheus.series(name) for label in series}
        there |= {*documented().get(family_of(name), ()), "job", "instance"}
        assert matched_labels(selector) <= there, selector
        known |= there
    assert query.grouping_labels() <= known


def test_no_reason_is_left_for_a_selector_that_has_gone() -> None:
    assert set(WITHOUT_SERIES) <= {each for query in ALL for each in query.selectors()}


def test_prometheus_has_every_rule_and_none_fails(prometheus: Prometheus) -> None:
    found = prometheus.rules()
    assert {rule["name"] for rule in found} == {*rules("alert"), *rules("record")}
    assert [(rule["name"], rule["lastError"]) for rule in found if rule["health"] != "ok"] == []


def test_trouble_raises_its_alerts_and_no_others(prometheus: Prometheus) -> None:
    """They wait for their time, or fire. A demo that is well has none but those of a full node and of guests that just now wish for more."""

    def raised() -> bool:
        return set(prometheus.alerts()) >= TROUBLE

    shown_blocking("the alerts of the trouble", raised)
    assert set(prometheus.alerts()) <= TROUBLE | DEPENDS


@pytest.mark.parametrize(
    ("alert", "label", "whose"),
    [
        ("ParleyNodeOverFull", "node", {"node-2"}),
        ("ParleyPoolUnknown", "pool", {"nobodys"}),
        ("ParleyPoolParked", "pool", {"stray"}),
        ("ParleyPoolSaturated", "pool", {"ci"}),
        ("ParleyVmStuck", "vm", {"default/db-1"}),
        ("ParleyVmDenied", "vm", {"default/db-0", "default/db-2"}),
    ],
)
def test_an_alert_names_who_is_in_trouble(
    prometheus: Prometheus, alert: str, label: str, whose: set[str]
) -> None:
    def named() -> bool:
        return whose <= {each[label] for each in prometheus.alerts()[alert]}

    shown_blocking(f"{alert} of {whose}", named)


def test_the_board_is_one_that_grafana_can_place() -> None:
    """Every panel has an ID and a place of its own, and asks the datasource that the user chooses."""
    panels = board()["panels"]
    assert Counter(panel["id"] for panel in panels).most_common(1)[0][1] == 1
    taken: Counter[tuple[int, int]] = Counter()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken.update(
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        )
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["title"]
            assert panel["description"]
            assert panel["targets"]
    assert set(taken.values()) == {1}
    variables = {each["name"]: each for each in board()["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert set(variables) == {"datasource", "node"}
