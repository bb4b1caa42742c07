"""The default profiles, built: every shipped plugin is where its methods say, and which plugins run beside kube-scheduler."""

import pytest

from hosting.settings import check
from parley.testing import FakeCluster
from scheduler.placing.core.profile import Profile
from scheduler.placing.core.values import ExtensionPoint
from scheduler.placing.cycle.assembly import check_profiles, of_profile
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.registry import EXTENDER_PROFILE, FULL_PROFILE, SHIPPED, new_registry

DEFAULTS = {"full": FULL_PROFILE, "extender": EXTENDER_PROFILE}
POINTS = {
    "full": {
        ExtensionPoint.PRE_ENQUEUE: "SchedulingGates",
        ExtensionPoint.QUEUE_SORT: "PrioritySort",
        ExtensionPoint.PRE_FILTER: (
            "UnhandledFeatures NodeAffinity NodePorts NodeResources PodTopologySpread PoolAdmission Reservation LedgerFit"
        ),
        ExtensionPoint.FILTER: (
            "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResources PodTopologySpread Reservation LedgerFit"
        ),
        ExtensionPoint.PRE_SCORE: "NodeAffinity PodTopologySpread Reservation",
        ExtensionPoint.SCORE: "TaintToleration NodeAffinity PodTopologySpread Reservation GrowthHeadroom",
        ExtensionPoint.RESERVE: "LedgerFit",
        ExtensionPoint.PRE_BIND: "Reservation LedgerFit DefaultPreBind",
        ExtensionPoint.BIND: "Reservation DefaultBinder",
        ExtensionPoint.POST_BIND: "LedgerFit",
    },
    "extender": {
        ExtensionPoint.QUEUE_SORT: "PrioritySort",
        ExtensionPoint.PRE_FILTER: "PoolAdmission Reservation LedgerFit",
        ExtensionPoint.FILTER: "Reservation LedgerFit",
        ExtensionPoint.PRE_SCORE: "Reservation",
        ExtensionPoint.SCORE: "Reservation GrowthHeadroom",
        ExtensionPoint.RESERVE: "LedgerFit",
        ExtensionPoint.PRE_BIND: "Reservation LedgerFit DefaultPreBind",
        ExtensionPoint.BIND: "Reservation DefaultBinder",
        ExtensionPoint.POST_BIND: "LedgerFit",
    },
}


@pytest.mark.parametrize("mode", POINTS)
def test_what_runs_where_nobody_configures_anything(mode: str) -> None:
    registry, defaults = new_registry(), DEFAULTS[mode]
    check_profiles([Profile("parley")], registry, defaults)
    made = of_profile(Profile("parley"), registry, defaults)(FakeCluster().framework({}))
    found = {point: " ".join(names) for point, names in made.profile.points.items() if names}
    assert found == POINTS[mode]


def test_every_plugin_of_a_default_is_shipped() -> None:
    enabled = {each.name for profile in DEFAULTS.values() for each in profile.multi_point.enabled}
    assert enabled <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_factory_is_the_class_of_its_name_and_its_defaults_are_right(name: str) -> None:
    factory = new_registry().get(name)
    assert isinstance(factory, type)
    assert issubclass(factory, ShippedPlugin)
    assert factory(None, FakeCluster().framework({})).name() == name
    assert check(None, factory.ARGS) == factory.ARGS()
