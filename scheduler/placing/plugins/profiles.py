"""The profiles of a scheduler: those of `scheduling:` in its configuration file, and the default plugins that they are laid over.

They are written as in a KubeSchedulerConfiguration. What one file can say wrongly in itself is told when it is read. What depends on the
plugins that there are (names, points, numbers of plugins) is told by `scheduler.placing.cycle.assembly.check_profiles`, with the
same paths. Default filters stand in the order of what they cost, and those that refuse most often first; the plugins of pools and of
the ledger come last among those that keep something, so that nothing has to be given back when another one refuses.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from hosting.settings import Settings
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import ExtensionPoint

_WITH_THE_LEDGER: Final = (
    EnabledPlugin("PoolAdmission"),
    EnabledPlugin("Reservation", 10),
    EnabledPlugin("LedgerFit"),
    EnabledPlugin("GrowthHeadroom", 2),
)
"""A reservation is there to be used: the node that has one for the pod is the best, whatever the others say."""

EXTENDER_PROFILE: Final = Profile(
    "",
    multi_point=PluginSet((EnabledPlugin("PrioritySort"), *_WITH_THE_LEDGER, EnabledPlugin("DefaultBinder"))),
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
            EnabledPlugin("DefaultBinder"),
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
        """As the profile has it."""
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
    """What pods name as `schedulerName` to be placed by this profile."""
    plugins: PointsEntry = Field(default_factory=PointsEntry)
    plugin_config: Annotated[list[PluginArgsEntry], Field(max_length=MAX_PLUGINS)] = Field(
        default_factory=list
    )

    def profile(self, path: str) -> Profile:
        """The profile, which is at `path` in the file."""
        points = {point: getattr(self.plugins, point.name.lower()).plugin_set() for point in ExtensionPoint}
        args = tuple(PluginArgs(entry.name, entry.args) for entry in self.plugin_config)
        return Profile(self.scheduler_name, points, self.plugins.multi_point.plugin_set(), args, path)


class SchedulingEntry(Settings):
    """The profiles; one with the default plugins where the file names none."""

    profiles: Annotated[list[ProfileEntry], Field(max_length=MAX_PROFILES)] = Field(default_factory=list)

    def all_profiles(self) -> tuple[Profile, ...]:
        """Every profile, unchecked, in the order of the file."""
        entries = self.profiles or [ProfileEntry()]
        return tuple(entry.profile(f"scheduling.profiles[{index}]") for index, entry in enumerate(entries))
