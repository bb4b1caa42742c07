"""`ScarceResourceAvoidance`: pods that do not request a scarce resource stay off the nodes that have it. Source: reference/koordinator.md 2.3."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from hosting.kubernetes import names
from hosting.settings import check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import MAX_NODE_SCORE, Code, ContextKey, Status, new_status
from scheduler.placing.plugins.amounts import NodeAmounts, readable_amounts
from scheduler.placing.plugins.base import PublishedArgs, ShippedPlugin
from scheduler.placing.plugins.node_resources import PODS

_REQUESTED: Final = ContextKey("ScarceResourceAvoidance/requested")
_NO_RESOURCE: Final = frozenset({PODS, names.MANAGED})
"""Names that each node has without anything being scarce or plentiful there."""


class ScarceResourceAvoidanceArgs(PublishedArgs):
    """The published args."""

    resources: list[Annotated[str, Field(min_length=1, max_length=316)]] = Field(default_factory=list)
    """The names of the scarce resources, each once."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().rules(found)
        named = found.get("resources", ())
        if len(set(named)) < len(named):
            yield "resources", f"must name each resource once, not {', '.join(named)}"


class ScarceResourceAvoidance(ShippedPlugin):
    """The plugin. Points: preScore, score."""

    ARGS = ScarceResourceAvoidanceArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._scarce = frozenset(check(args, ScarceResourceAvoidanceArgs).resources)
        self._amounts = NodeAmounts()

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        """Skip for a pod that requests every scarce resource: every node would score 100."""
        requested = {name for name, amount in readable_amounts(pod).items() if amount}
        context.write(_REQUESTED, requested)
        return new_status(Code.SKIP) if self._scarce <= requested else None

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """0 to 100: the share of what the node has and the pod does not request that is not scarce; the more a node has that is plentiful,
        the less its scarce resources tell against it."""
        most = self._amounts.allocatable(node)
        unused = (
            {name for name, amount in most.items() if amount > 0} - context.read(_REQUESTED) - _NO_RESOURCE
        )
        scarce = len(unused & self._scarce)
        return (len(unused) - scarce) * MAX_NODE_SCORE // len(unused) if scarce else MAX_NODE_SCORE, None
