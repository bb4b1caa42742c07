"""The args of `ElasticQuota`, with the published names, defaults and ranges. Source: reference/koordinator.md 2.4."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from hosting.amounts import GoDuration
from scheduler.placing.plugins.base import PublishedArgs
from scheduler.quotas.values import UNBOUNDED_AMOUNTS, read_amounts

MAX_RESOURCES: Final = 64


def _not_negative(value: object) -> dict[str, int]:
    found = read_amounts(value)
    negative = sorted(name for name, amount in found.items() if amount < 0)
    if negative:
        raise ValueError(f"must not be negative: {', '.join(negative)}")
    return found


ResourceList = Annotated[dict[str, int], BeforeValidator(_not_negative), Field(max_length=MAX_RESOURCES)]


class ElasticQuotaArgs(PublishedArgs):
    """The args of `ElasticQuota`. All but the last are published."""

    delay_evict_time: GoDuration = 120.0
    """How long a quota may use more than its runtime before pods of it are evicted, where `monitorAllQuotas` says so."""
    revoke_pod_interval: GoDuration = 1.0
    """Between two looks for such quotas."""
    default_quota_group_max: ResourceList = Field(default_factory=lambda: dict(UNBOUNDED_AMOUNTS))
    """The most that pods without a quota of their own may use together."""
    system_quota_group_max: ResourceList = Field(default_factory=lambda: dict(UNBOUNDED_AMOUNTS))
    """The most that the system's quota may use."""
    quota_group_namespace: Annotated[str, Field(min_length=1, max_length=63)] = "koordinator-system"
    """The namespace in which objects of root, system and default quota are looked for."""
    monitor_all_quotas: bool = False
    """Whether pods are evicted from quotas that use more than their runtime. The scheduler needs the right to evict for that."""
    enable_check_parent_quota: bool = False
    """Whether every quota above a pod's own must have room for it, too."""
    enable_runtime_quota: bool = True
    """Whether a quota may use its runtime; with false, its max."""
    enable_min_quota_scale: bool = True
    """Whether minimums shrink where there is not enough for all of them."""
    disable_default_quota_preemption: bool = True
    """Must be true: no pod of the default quota is preempted for another one of it."""
    enable_queue_hint: bool = False
    """Whether a rejected pod is tried again only after changes of its own quota, or one related to that."""
    quota_snapshot_update_interval: GoDuration = 120.0
    """Read, and without effect: shares are reckoned anew whenever something has changed."""
    hook_plugins: Annotated[list[Any], Field(max_length=0)] = Field(default_factory=list)
    """Must be empty: no hook plugins of quotas can be had here."""
    evict_victims: bool = False
    """Whether pods are evicted from a quota to make room in it for a pod of higher priority; with false they are only named."""
