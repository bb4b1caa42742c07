"""The runs of transformers: they change what the native runs see. Source: reference/koordinator.md 1.4 and 1.5.

Each transformer sees what the ones before it made. A status that is no Success ends the run, as the word of its transformer.
"""

from collections.abc import Sequence

from scheduler.framework.core.extended import FilterTransformer, PreFilterTransformer, ScoreTransformer
from scheduler.framework.core.objects import NodeInfo, PodInfo
from scheduler.framework.core.plugin import CycleContext, PreFilterResult
from scheduler.framework.core.status import Status, is_success
from scheduler.framework.extension.answers import answered, first_failure


async def before_pre_filter(
    transformers: Sequence[PreFilterTransformer], context: CycleContext, pod: PodInfo
) -> tuple[PodInfo, Status | None]:
    """The pod that the pre-filter plugins see."""
    for transformer in transformers:
        changed, status = await answered(transformer.before_pre_filter(context, pod))
        if status is not None and not is_success(status):
            return pod, status.by(transformer.name())
        pod = changed if changed is not None else pod
    return pod, None


async def after_pre_filter(
    transformers: Sequence[PreFilterTransformer],
    context: CycleContext,
    pod: PodInfo,
    result: PreFilterResult | None,
) -> Status | None:
    """Whether the cycle goes on with the result of the pre-filter plugins."""
    return await first_failure(
        (transformer, transformer.after_pre_filter(context, pod, result)) for transformer in transformers
    )


async def before_filter(
    transformers: Sequence[FilterTransformer], context: CycleContext, pod: PodInfo, node: NodeInfo
) -> tuple[PodInfo, NodeInfo, Status | None]:
    """The pod and the node that the filters see."""
    for transformer in transformers:
        changed, changed_node, status = await answered(transformer.before_filter(context, pod, node))
        if status is not None and not is_success(status):
            return pod, node, status.by(transformer.name())
        pod = changed if changed is not None else pod
        node = changed_node if changed_node is not None else node
    return pod, node, None


async def before_score(
    transformers: Sequence[ScoreTransformer], context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
) -> tuple[PodInfo, Sequence[NodeInfo], Status | None]:
    """The pod and the nodes that are scored."""
    for transformer in transformers:
        changed, changed_nodes, status = await answered(transformer.before_score(context, pod, nodes))
        if status is not None and not is_success(status):
            return pod, nodes, status.by(transformer.name())
        pod = changed if changed is not None else pod
        nodes = changed_nodes if changed_nodes is not None else nodes
    return pod, nodes, None
