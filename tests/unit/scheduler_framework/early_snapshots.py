"""Player of the recorded statements about the node snapshot (part E of `framework-v1alpha1.jsonl`): one sequence of fifteen.

What a scheduler's snapshots are made of is told by the tests of the view that makes them; here a few lines stand in for that.
"""

from dataclasses import replace
from typing import Any

from protocol.wire import PodName
from scheduler.placing.core.handle import RawArgs
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.plugin import Plugin
from scheduler.placing.plugins.registry import Registry
from tests.support.early_framework import EarlyFramework, new_framework_of_all
from tests.unit.scheduler_framework.scripted import Script, Scripted, Seen

Outcome = dict[str, Any]


class Nodes:
    """The nodes as they are known; `refresh` shows them to a framework, as the beginning of a cycle does."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._generation = 0

    def put(self, name: str, *pods: PodInfo) -> None:
        """A node with these pods, new or changed."""
        self._generation += 1
        node = self._nodes.get(name, NodeInfo(name))
        self._nodes[name] = replace(node, pods=pods, generation=self._generation)

    def remove(self, name: str) -> None:
        self._generation += 1
        del self._nodes[name]

    def refresh(self, framework: EarlyFramework) -> NodeSnapshot:
        """A cycle begins."""
        framework.set_snapshot(NodeSnapshot(self._nodes, self._generation))
        return framework.node_info_snapshot()


def shown(snapshot: NodeSnapshot) -> list[str]:
    """The nodes of a snapshot as the recording has them."""
    return [f"{name}: {len(node.pods)} pods" for name, node in sorted(snapshot.items())]


def clear(snapshot: Any) -> None:
    """A caller tries to change the map, in vain."""
    try:
        snapshot.clear()
    except AttributeError:
        pass
    else:
        raise AssertionError("a snapshot can be changed")


def _beginning() -> tuple[EarlyFramework, list[Outcome]]:
    handles: list[Any] = []

    def make(args: RawArgs, handle: object) -> Plugin:
        handles.append(handle)
        return Scripted({"name": "a"}, Seen())

    registry = Registry()
    registry.register("a", make)
    framework, other = new_framework_of_all(registry), new_framework_of_all(Registry())
    first = framework.node_info_snapshot()
    return framework, [
        {"generation": first.generation, "map_is_null": False, "nodes": len(first)},
        {"same_object": framework.node_info_snapshot() is first},
        {"same_object": handles[0].node_info_snapshot() is first},
        {"same_object": other.node_info_snapshot() is first},
        {"is_null": other.node_info_snapshot() is None},
    ]


async def play_snapshot(given: Script) -> Outcome:
    """The whole sequence; returns the statement of this case."""
    framework, seen = _beginning()
    nodes, pod = Nodes(), PodInfo(PodName(namespace="ns", name="pod"), "uid")
    empty = framework.node_info_snapshot()
    nodes.put("n1")
    nodes.put("n2")
    seen.append({"nodes": shown(framework.node_info_snapshot())})
    before = nodes.refresh(framework)
    seen.append(
        {"nodes": shown(before), "generation_above_0": before.generation > 0, "same_object": before is empty}
    )
    nodes.put("n1", pod)
    seen.append({"nodes": shown(framework.node_info_snapshot())})
    after = nodes.refresh(framework)
    seen.append(
        {
            "nodes": shown(after),
            "generation_grew": after.generation > before.generation,
            "n1_same_object": after["n1"] is before["n1"],
            "n2_same_object": after["n2"] is before["n2"],
            "old_n1_pods": len(before["n1"].pods),
        }
    )
    same = nodes.refresh(framework)
    seen.append({"nodes": shown(same), "generation_same": same.generation == after.generation})
    nodes.put("n1")
    seen.append({"nodes": shown(nodes.refresh(framework))})
    nodes.remove("n2")
    seen.append({"nodes": shown(framework.node_info_snapshot())})
    seen.append({"nodes": shown(nodes.refresh(framework))})
    clear(framework.node_info_snapshot())
    seen.append({"nodes": shown(framework.node_info_snapshot())})
    seen.append({"nodes": shown(nodes.refresh(framework))})
    number: int = given["statement"]
    return seen[number - 1]
