"""The args of `LoadAwareScheduling`, with the published names, defaults and ranges. Source: reference/koordinator.md 2.1."""

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from hosting.amounts import GoDuration
from hosting.settings import Settings
from scheduler.placing.plugins.base import PublishedArgs

AggregationType = Literal["avg", "p50", "p90", "p95", "p99"]
DEFAULT_WEIGHTS: Final = {"cpu": 1, "memory": 1}
DEFAULT_THRESHOLDS: Final = {"cpu": 65, "memory": 95}
DEFAULT_FACTORS: Final = {"cpu": 85, "memory": 70}


ResourceKey = Annotated[str, Field(min_length=1, max_length=316)]
Thresholds = dict[ResourceKey, Annotated[int, Field(ge=0, le=100)]]
Weights = dict[ResourceKey, Annotated[int, Field(ge=1, le=100)]]


class AggregatedUsageArgs(Settings):
    """The percentile, and its window, that is judged instead of the mean of the last minutes."""

    usage_thresholds: Thresholds = Field(default_factory=dict)
    """Per cent of a node's capacity above which the filter rejects it."""
    usage_aggregation_type: AggregationType | None = None
    """The figure that the filter looks at."""
    usage_aggregated_duration: GoDuration = 0.0
    """Its window; 0s for the longest that is reported."""
    score_aggregation_type: AggregationType | None = None
    """The figure that scores go by; without one they go by the mean."""
    score_aggregated_duration: GoDuration = 0.0
    """The window of that figure; 0s for the longest that is reported."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Thresholds that nothing is compared with would silently be none."""
        has_no_type = "usage_aggregation_type" in found and found["usage_aggregation_type"] is None
        if has_no_type and found.get("usage_thresholds"):
            yield "usageAggregationType", "must be given beside usageThresholds"


class LoadAwareSchedulingArgs(PublishedArgs):
    """The published args, and `staleMetrics`, which is ours."""

    filter_expired_node_metrics: bool = True
    """Deprecated: false judges a node by metrics of any age."""
    node_metric_expiration_seconds: Annotated[int, Field(gt=0)] = 180
    """Seconds after which a NodeMetric counts as expired."""
    enable_schedule_when_node_metrics_expired: bool = False
    """Whether nodes with expired metrics pass the filter."""
    stale_metrics: Literal["Admit", "Reject", "ScoreLow"] | None = None
    """What becomes of nodes whose metrics are missing or expired, whatever the published flags say: Admit (the node passes, and is scored
    by the estimates of its pods alone), Reject, or ScoreLow (it passes, and its score is 0). Without it a node without metrics passes, one with expired metrics does as the published flags say, and both score 0."""
    resource_weights: Weights = Field(default_factory=dict)
    """How much each resource counts in the score; CPU and memory 1 each if empty and dominantResourceWeight is 0."""
    dominant_resource_weight: Annotated[int, Field(ge=0, le=100)] = 0
    """How much the resource that is scarcest on a node counts once more."""
    usage_thresholds: Thresholds = Field(default_factory=dict)
    """Per cent of a node's capacity above which the filter rejects it; CPU 65 and memory 95 if empty."""
    prod_usage_thresholds: Thresholds = Field(default_factory=dict)
    """The same for the use of pods of the class prod alone; judges such pods instead of the other thresholds."""
    prod_usage_include_sys: bool = False
    """Whether the use of the system counts as one of prod pods."""
    score_according_prod_usage: bool = False
    """Whether prod pods are scored by the use of prod pods alone."""
    estimated_scaling_factors: Weights = Field(default_factory=dict)
    """Per cent of its request or limit that a pod is likely to use; CPU 85 and memory 70 where they are left out."""
    estimated_seconds_after_pod_scheduled: Annotated[int, Field(ge=0)] | None = None
    """For so long after it was scheduled, a pod counts with its estimate at least."""
    estimated_seconds_after_initialized: Annotated[int, Field(ge=0)] | None = None
    """The same from the moment in which its init containers are done, which goes before."""
    allow_customize_estimation: bool = False
    """Whether annotations of pods may change factors and seconds."""
    aggregated: AggregatedUsageArgs | None = None
    """Percentiles instead of means."""
    supported_resources: list[ResourceKey] = Field(default_factory=list)
    """Resources that are looked at beside CPU, memory and those that weights, thresholds and factors name."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Each resource that is weighed can be estimated."""
        yield from super().rules(found)
        if "resource_weights" in found and "estimated_scaling_factors" in found:
            factors = DEFAULT_FACTORS | found["estimated_scaling_factors"]
            for name in found["resource_weights"]:
                if name not in factors:
                    yield "estimatedScalingFactors", f"must have {name}, which resourceWeights names"

    @functools.cached_property
    def weights(self) -> Mapping[str, int]:
        if self.resource_weights or self.dominant_resource_weight:
            return self.resource_weights
        return DEFAULT_WEIGHTS

    @functools.cached_property
    def factors(self) -> Mapping[str, int]:
        return DEFAULT_FACTORS | self.estimated_scaling_factors

    @functools.cached_property
    def resources(self) -> tuple[str, ...]:
        """Each resource that is looked at, CPU and memory first."""
        aggregated = self.aggregated.usage_thresholds if self.aggregated is not None else {}
        plain = self.usage_thresholds.keys() | self.prod_usage_thresholds.keys() | aggregated.keys()
        named = plain | self.weights.keys() | self.factors.keys() | set(self.supported_resources)
        return (*DEFAULT_FACTORS, *sorted(named - DEFAULT_FACTORS.keys()))
