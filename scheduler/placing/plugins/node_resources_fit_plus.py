"""`NodeResourcesFitPlus`: each resource is packed or spread by itself, such as devices packed and CPU spread. Source: reference/koordinator.md 2.2."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from hosting.settings import Settings, check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import MAX_NODE_SCORE, Code, ContextKey, Status, new_status
from scheduler.placing.plugins.amounts import NodeAmounts, readable_amounts
from scheduler.placing.plugins.base import PublishedArgs, ShippedPlugin
from scheduler.placing.plugins.ledger_fit import own_row

_WANTED: Final = ContextKey("NodeResourcesFitPlus/wanted")


class ResourceStrategy(Settings):
    """How nodes are scored by one resource."""

    type: Literal["MostAllocated", "LeastAllocated"]
    """Whether the node with the most, or with the least, of it given away is the best."""
    weight: Annotated[int, Field(ge=0, le=2**31 - 1)]
    """Its part of the score, against that of the other resources that the pod requests; 0 leaves it out."""


class NodeResourcesFitPlusArgs(PublishedArgs):
    """The published args; a strategy that there is not is a fault, where the published plugin scores 0."""

    resources: dict[Annotated[str, Field(min_length=1, max_length=316)], ResourceStrategy] = Field(
        default_factory=dict
    )
    """The strategy of each resource that counts."""


class NodeResourcesFitPlus(ShippedPlugin):
    """The plugin. Points: preScore, score."""

    ARGS = NodeResourcesFitPlusArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = check(args, NodeResourcesFitPlusArgs).resources
        self._strategies = {name: each for name, each in read.items() if each.weight}
        self._amounts = NodeAmounts()

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        """Skip for a pod that requests nothing that counts: every node would score 100."""
        wanted = {
            name: amount
            for name, amount in readable_amounts(pod).items()
            if name in self._strategies and amount
        }
        context.write(_WANTED, wanted)
        return None if wanted else new_status(Code.SKIP)

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """0 to 100: the mean over the resources that the pod requests, by their weights, as if the pod were there."""
        wanted: Mapping[str, int] = context.read(_WANTED)
        most, given = self._amounts.allocatable(node), self._amounts.requested(node)
        is_there = own_row(pod, node) is not None
        total = weights = 0
        for name, amount in wanted.items():
            strategy = self._strategies[name]
            used = given.get(name, 0) + (0 if is_there else amount)
            total += strategy.weight * allocated_score(strategy.type, used, most.get(name, 0))
            weights += strategy.weight
        return total // weights, None


def allocated_score(type_: str, used: int, most: int) -> int:
    """0 to 100, by how much of a resource is given away; 0 for a node that has none of it."""
    if most <= 0:
        return 0
    if type_ == "MostAllocated":
        return min(used, most) * MAX_NODE_SCORE // most
    return max(most - used, 0) * MAX_NODE_SCORE // most
