"""kube-scheduler gets brief reasons for the nodes that are dropped."""

import pytest

from scheduler.placing.core.values import Code, Status, new_status
from scheduler.placing.kube_extender.messages import MOST_NODES_IN_FULL, texts


def lacking(index: int) -> Status:
    return new_status(
        Code.UNSCHEDULABLE, f"Insufficient cpu: others leave {index}m", "Insufficient memory: 1Gi"
    )


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (MOST_NODES_IN_FULL, "Insufficient cpu: others leave 0m, Insufficient memory: 1Gi"),
        (MOST_NODES_IN_FULL + 1, "Insufficient cpu, Insufficient memory"),
    ],
)
def test_reasons_of_many_nodes_are_brief(nodes: int, text: str) -> None:
    found = texts({f"node-{index}": lacking(index) for index in range(nodes)}, are_resolvable=True)
    assert found["node-0"] == text
    assert len(found) == nodes
