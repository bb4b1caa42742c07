"""Which scheduling plugins there are, and the profiles of a scheduler: by default, and as `scheduling:` of its configuration has them.

Profiles are written as in a KubeSchedulerConfiguration. A fault that one file has in itself is told when it is read. Faults that depend
on the plugins that there are (names, points, numbers) are told by `scheduler.placing.cycle.assembly.check_profiles`, with the
same paths. Default filters stand in the order of what they cost, and those that refuse most often first; the plugins of pools and of
the ledger come last among those that keep something, so that nothing has to be given back when another one refuses. The registry's
texts are those of its source, seed 001.
"""

from collections.abc import Mapping
from importlib import metadata
from typing import Annotated, Any, Final

from pydantic import Field

from hosting.registry import FactoryRegistry, RegistryError
from hosting.settings import Settings
from scheduler.placing.core.handle import PluginFactory
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import ExtensionPoint

PLUGIN_GROUP: Final = "parley.scheduling_plugins"
"""The entry-point group of scheduling plugins: the entry's name is the plugin's, its value the factory."""
SHIPPED: Final[Mapping[str, str]] = {
    "Coscheduling": "scheduler.placing.plugins.coscheduling.plugin:Coscheduling",
    "DefaultBinder": "scheduler.placing.plugins.ledger_fit:DefaultBinder",
    "DefaultPreBind": "scheduler.placing.plugins.default_pre_bind:DefaultPreBind",
    "DeviceShare": "scheduler.placing.plugins.device_share.plugin:DeviceShare",
    "ElasticQuota": "scheduler.placing.plugins.elastic_quota.plugin:ElasticQuota",
    "GrowthHeadroom": "scheduler.placing.plugins.growth_headroom:GrowthHeadroom",
    "LedgerFit": "scheduler.placing.plugins.ledger_fit:LedgerFit",
    "LoadAwareScheduling": "scheduler.placing.plugins.load_aware.plugin:LoadAwareScheduling",
    "NodeAffinity": "scheduler.placing.plugins.node_conditions:NodeAffinity",
    "NodeNUMAResource": "scheduler.placing.plugins.node_numa_resource.plugin:NodeNUMAResource",
    "NodeName": "scheduler.placing.plugins.node_conditions:NodeName",
    "NodePorts": "scheduler.placing.plugins.node_resources:NodePorts",
    "NodeResources": "scheduler.placing.plugins.node_resources:NodeResources",
    "NodeResourcesFitPlus": "scheduler.placing.plugins.node_resources_fit_plus:NodeResourcesFitPlus",
    "NodeUnschedulable": "scheduler.placing.plugins.node_conditions:NodeUnschedulable",
    "PodTopologySpread": "scheduler.placing.plugins.pod_topology_spread:PodTopologySpread",
    "PoolAdmission": "scheduler.placing.plugins.ledger_fit:PoolAdmission",
    "PrioritySort": "scheduler.placing.plugins.queueing:PrioritySort",
    "Reservation": "scheduler.placing.plugins.reservation:ReservationPlugin",
    "ScarceResourceAvoidance": "scheduler.placing.plugins.scarce_resource_avoidance:ScarceResourceAvoidance",
    "SchedulingGates": "scheduler.placing.plugins.queueing:SchedulingGates",
    "SchedulingHint": "scheduler.placing.plugins.scheduling_hint:SchedulingHint",
    "TaintToleration": "scheduler.placing.plugins.node_conditions:TaintToleration",
    "UnhandledFeatures": "scheduler.placing.plugins.queueing:UnhandledFeatures",
}
"""The plugins that come with the scheduler: name, and where the factory is. Its module is imported at the first use."""


class Registry(FactoryRegistry[PluginFactory]):
    """Factories of scheduling plugins by name, which may be any text. Complete before a framework is built from it."""

    def __init__(self) -> None:
        super().__init__("scheduling plugin", lambda name: isinstance(name, str), "a name must be a text")

    def unregister(self, name: str) -> None:
        """Remove a factory. Raises `RegistryError` for a name that is not registered."""
        if name not in self._factories:
            raise RegistryError(f"no plugin named {name} exists")
        del self._factories[name]

    def merge(self, other: "Registry") -> None:
        """Add the factories of `other`, one by one. Raises `RegistryError` at the first taken name; what came before it stays."""
        for name, load in other._factories.items():  # noqa: SLF001 - of the same class
            self._add(name, load)

    def _taken(self, name: str) -> str:
        return f"a plugin named {name} already exists"


def new_registry() -> Registry:
    """The plugins that are shipped, and those of installed distributions. Source: seed 001, `NewRegistry`.

    Raises `RegistryError` where two use one name.
    """
    found = Registry()
    for name, value in SHIPPED.items():
        found.add_entry_point(metadata.EntryPoint(name, value, PLUGIN_GROUP))
    found.load_entry_points(PLUGIN_GROUP)
    return found


_WITH_THE_LEDGER: Final = (
    EnabledPlugin("PoolAdmission"),
    EnabledPlugin("Reservation", 10),
    EnabledPlugin("LedgerFit"),
    EnabledPlugin("GrowthHeadroom", 2),
)
"""A reservation is there to be used: the node that has one for the pod is the best, whatever the others say."""

_AT_LAST: Final = (EnabledPlugin("DefaultPreBind"), EnabledPlugin("DefaultBinder"))

EXTENDER_PROFILE: Final = Profile(
    "",
    multi_point=PluginSet((EnabledPlugin("PrioritySort"), *_WITH_THE_LEDGER, *_AT_LAST)),
)
"""Beside kube-scheduler, whose own plugins judge what is not the ledger's. No queue is sorted there, but each profile has an order."""

FULL_PROFILE: Final = Profile(
    "",
    multi_point=PluginSet(
        (
            EnabledPlugin("PrioritySort"),
            EnabledPlugin("SchedulingGates"),
            EnabledPlugin("UnhandledFeatures"),
            EnabledPlugin("NodeUnschedulable"),
            EnabledPlugin("NodeName"),
            EnabledPlugin("TaintToleration", 3),
            EnabledPlugin("NodeAffinity", 2),
            EnabledPlugin("NodePorts"),
            EnabledPlugin("NodeResources"),
            EnabledPlugin("PodTopologySpread", 2),
            *_WITH_THE_LEDGER,
            *_AT_LAST,
        )
    ),
)
"""For pods that name this scheduler. The weights are those of kube-scheduler where it has the same plugin."""


DEFAULT_SCHEDULER_NAME: Final = "parley-scheduler"
"""The profile of a file that names none."""
MAX_PROFILES: Final = 32
MAX_PLUGINS: Final = 256
"""In one list."""
MAX_WEIGHT: Final = 2**31 - 1

PluginName = Annotated[str, Field(min_length=1, max_length=253)]


class DisabledEntry(Settings):
    """A default plugin that is not called at a point, or `*` for all of them."""

    name: PluginName
    """The name under which the plugin is registered; `*` in `disabled` stands for all."""


class EnabledEntry(DisabledEntry):
    """A plugin that is called at a point. The weight counts where the plugin scores."""

    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    """How much its scores count, from 1."""


class PointEntry(Settings):
    """The plugins of one point, beside the default ones or in their place."""

    enabled: Annotated[list[EnabledEntry], Field(max_length=MAX_PLUGINS)] = Field(default_factory=list)
    disabled: Annotated[list[DisabledEntry], Field(max_length=MAX_PLUGINS)] = Field(default_factory=list)

    def plugin_set(self) -> PluginSet:
        return PluginSet(
            tuple(EnabledPlugin(entry.name, entry.weight) for entry in self.enabled),
            tuple(entry.name for entry in self.disabled),
        )


class PointsEntry(Settings):
    """Every point, and `multiPoint` for all points that a plugin extends."""

    multi_point: PointEntry = Field(default_factory=PointEntry)
    pre_enqueue: PointEntry = Field(default_factory=PointEntry)
    queue_sort: PointEntry = Field(default_factory=PointEntry)
    pre_filter: PointEntry = Field(default_factory=PointEntry)
    filter: PointEntry = Field(default_factory=PointEntry)
    post_filter: PointEntry = Field(default_factory=PointEntry)
    pre_score: PointEntry = Field(default_factory=PointEntry)
    score: PointEntry = Field(default_factory=PointEntry)
    reserve: PointEntry = Field(default_factory=PointEntry)
    permit: PointEntry = Field(default_factory=PointEntry)
    pre_bind: PointEntry = Field(default_factory=PointEntry)
    bind: PointEntry = Field(default_factory=PointEntry)
    post_bind: PointEntry = Field(default_factory=PointEntry)


class PluginArgsEntry(Settings):
    """The args of a plugin, as its factory wants them."""

    name: PluginName
    """The plugin that the args are for."""
    args: Any = None
    """Its parameters, which its own model checks."""


class ProfileEntry(Settings):
    """The plugins for the pods that name this scheduler."""

    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = DEFAULT_SCHEDULER_NAME
    """The `schedulerName` of the pods that this profile places."""
    percentage_of_nodes_to_score: Annotated[int, Field(ge=0, le=100)] = 0
    """Once so many percent of the nodes are feasible, at least 100 of them, the search for others ends. 0: by the number of nodes, as
    kube-scheduler does: 50 % of few, 5 % of very many."""
    plugins: PointsEntry = Field(default_factory=PointsEntry)
    plugin_config: Annotated[list[PluginArgsEntry], Field(max_length=MAX_PLUGINS)] = Field(
        default_factory=list
    )

    def profile(self, path: str) -> Profile:
        """The profile, which is at `path` in the file."""
        points = {point: getattr(self.plugins, point.name.lower()).plugin_set() for point in ExtensionPoint}
        args = tuple(PluginArgs(entry.name, entry.args) for entry in self.plugin_config)
        multi_point, percent = (
            self.plugins.multi_point.plugin_set(),
            self.percentage_of_nodes_to_score or None,
        )
        return Profile(self.scheduler_name, points, multi_point, args, path, percent)


class SchedulingEntry(Settings):
    """The profiles; one with the default plugins where the file names none."""

    profiles: Annotated[list[ProfileEntry], Field(max_length=MAX_PROFILES)] = Field(default_factory=list)

    def all_profiles(self) -> tuple[Profile, ...]:
        """Every profile, unchecked, in the order of the file."""
        entries = self.profiles or [ProfileEntry()]
        return tuple(entry.profile(f"scheduling.profiles[{index}]") for index, entry in enumerate(entries))
