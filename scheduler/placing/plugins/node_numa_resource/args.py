"""The args of `NodeNUMAResource`, with the published names, defaults and ranges."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hosting.settings import Settings
from scheduler.placing.plugins.base import PublishedArgs


class NumaResourceWeight(Settings):
    """How much a resource counts in a score."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The resource."""
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """Its part of the score, against those of the others."""


def _cpu_and_memory() -> list[NumaResourceWeight]:
    return [NumaResourceWeight(name="cpu"), NumaResourceWeight(name="memory")]


class NumaScoringStrategy(Settings):
    """Whether emptier nodes score higher, or fuller ones."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    """`MostAllocated` fills one node, or NUMA node, after the other."""
    resources: Annotated[list[NumaResourceWeight], Field(min_length=1)] = Field(
        default_factory=_cpu_and_memory
    )

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Each resource once."""
        names = [each.name for each in found.get("resources", ())]
        if len(set(names)) < len(names):
            yield "resources", f"must name each resource once, not {', '.join(names)}"

    @property
    def weights(self) -> dict[str, int]:
        return {each.name: each.weight for each in self.resources}


class NodeNUMAResourceArgs(PublishedArgs):
    """The args of `NodeNUMAResource`."""

    default_cpu_bind_policy: Annotated[
        Literal["", "FullPCPUs", "SpreadByPCPUs"], Field(alias="defaultCPUBindPolicy")
    ] = "FullPCPUs"
    """The bind policy of pods that name none; empty: such pods share their CPUs."""
    scoring_strategy: NumaScoringStrategy = Field(default_factory=NumaScoringStrategy)
    """Of nodes."""
    numa_scoring_strategy: NumaScoringStrategy = Field(default_factory=NumaScoringStrategy)
    """Of NUMA nodes; also in which order they are used where a node's label `node.koordinator.sh/numa-allocate-strategy` says nothing."""
