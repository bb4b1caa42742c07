"""`SchedulingHint`: a pod may say which nodes are looked at, and which are tried first. Source: reference/koordinator.md 2.10.

Whoever makes the pods knows sometimes where they should go, such as the controller of a job. The hint only narrows: filters judge as ever.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from hosting.settings import Settings, check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import Code, ContextKey, PreFilterResult, Status, new_status
from scheduler.placing.plugins.base import PublishedArgs, ShippedPlugin, annotation_of, find

HINT: Final = "internal.scheduling.koordinator.sh/scheduling-hint"
"""Annotation, JSON: `HintEntry`."""
DEPRECATED_HINT: Final = "scheduling.koordinator.sh/scheduling-hint"
"""As `HINT`, if that is not given."""
HINT_KEY: Final = ContextKey("SchedulingHint/hint")
"""The `HintEntry` of the pod; other plugins find theirs in its `extensions`."""


class HintEntry(Settings):
    """The hint of a pod."""

    node_names: list[str] = Field(default_factory=list)
    """The only nodes that are looked at; all if there is none."""
    preferred_node_names: list[str] = Field(default_factory=list)
    """The first of these that passes the filters is chosen."""
    extensions: dict[str, Any] = Field(default_factory=dict)
    """Hints for other plugins, by their names."""


class SchedulingHintArgs(PublishedArgs):
    """The args of `SchedulingHint`."""

    max_hint_nodes: Annotated[int, Field(ge=1)] = 100
    """How many preferred nodes are tried at most."""


class SchedulingHint(ShippedPlugin):
    """The plugin. Points: preFilter; it prefers nodes."""

    ARGS = SchedulingHintArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._most = check(args, SchedulingHintArgs).max_hint_nodes

    def before_pre_filter(self, context: CycleContext, pod: PodInfo) -> tuple[PodInfo | None, Status | None]:
        """Read the hint. A pod whose hint cannot be read is told so, instead of going anywhere."""
        try:
            hint = hint_of(pod.manifest)
        except ValueError as error:
            return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, str(error))
        if hint is not None:
            context.write(HINT_KEY, hint)
        return None, None

    def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> Status | None:
        """Nothing: the transformer only reads."""
        return None

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        hint: HintEntry | None = find(context, HINT_KEY)
        if hint is None or not hint.node_names:
            return None, new_status(Code.SKIP)
        return PreFilterResult(frozenset(hint.node_names)), None

    def prefer_nodes(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> tuple[Sequence[str], Status | None]:
        """The preferred nodes that are worth a look, in their order."""
        hint: HintEntry | None = find(context, HINT_KEY)
        names = hint.preferred_node_names[: self._most] if hint is not None else []
        if result is not None and result.node_names is not None:
            names = [name for name in names if name in result.node_names]
        return names, None if names else new_status(Code.SKIP)


def hint_of(manifest: Mapping[str, Any]) -> HintEntry | None:
    """The hint of a pod; None without one. Raises `ValueError`, with every fault, if it cannot be read."""
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    name = HINT if HINT in annotations else DEPRECATED_HINT
    if name not in annotations:
        return None
    return annotation_of(name, annotations[name], HintEntry)
