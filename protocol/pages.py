"""A scheduler's documents about its pools, plugins and scheduling: `/v1/pools`, `/v1/plugins` and `/v1/scheduling`; and an agent's about its
node: the node plugins (`/v1/plugins`) and the strategies (`/v1/qos`).

As in `protocol.explaining`: amounts are quantities as they are written, moments are RFC 3339 in UTC, and fields may be added.
A document of pools leaves out the fields that have no value.
"""

from typing import Any

import msgspec

from protocol.explaining import AmountShown, Document


class PoolLimitsShown(Document, frozen=True, omit_defaults=True):
    """The pool's own limits in its units; a field that is left out is no limit."""

    max_units: int | None = None
    max_units_per_vm: int | None = None
    min_units: int = 0


class SaturatedAmount(Document, frozen=True):
    """The amount of the whole pool at which the plugins have refused more of a resource, and until when that is believed."""

    at: str
    until: str


class LastOutcome(Document, frozen=True):
    """The last answer of the plugins, about `asked_units` of the whole pool. `plugin` is the one that decided."""

    kind: str
    message: str
    plugin: str
    asked_units: int
    admitted_units: int
    calls: int
    at: str


class ParkedVm(Document, frozen=True):
    """A VM that a plugin finds wrong at any size; it is not asked about again before the VM or its pool is changed."""

    uid: str
    pod: str
    plugin: str
    message: str


class ConditionShown(Document, frozen=True):
    """A condition as Kubernetes writes them. `status` is True, False or Unknown; `reason` is for scripts, the message for people."""

    type: str
    status: str
    reason: str
    message: str


class PoolStatusShown(Document, frozen=True, omit_defaults=True, kw_only=True):
    """The holdings of a pool, the claims on it, and the last word of its plugins.

    `total_units` is what its VMs hold, `members` is the number of VMs that name it, `waiting` the number of requests that
    wait for it. Amounts are there if the plugins limit amounts.
    """

    total_units: int
    members: int
    waiting: int
    is_above_limit: bool
    total_amount: AmountShown | None = None
    saturated_amounts: dict[str, SaturatedAmount] | None = None
    claimed_amount: AmountShown | None = None
    came_beyond_limit: int = 0
    saturated_at_units: int | None = None
    saturated_until: str | None = None
    claimed_units: int = 0
    claimed_until: str | None = None
    last_outcome: LastOutcome | None = None
    parked_vms: tuple[ParkedVm, ...] = ()
    conditions: tuple[ConditionShown, ...]


class PoolShown(Document, frozen=True):
    """A pool. `generation` rises with every change; `deleting` says that finalizers hold it."""

    name: str
    uid: str
    generation: int
    compute_unit: AmountShown
    limits: PoolLimitsShown
    labels: dict[str, str]
    annotations: dict[str, str]
    finalizers: tuple[str, ...]
    deleting: bool
    status: PoolStatusShown


class UnparkedPool(PoolShown, frozen=True):
    """A pool after `unpark`. `changed` says whether there was anything to end."""

    changed: bool


class DeletedPool(Document, frozen=True):
    """A pool that is no more."""

    name: str
    deleted: bool


class PoolsShown(Document, frozen=True):
    """`GET /v1/pools`: all pools, by name."""

    pools: tuple[PoolShown, ...]


class PluginShown(Document, frozen=True):
    """A plugin of the chain. `status` is the plugin's own status, in any form."""

    name: str
    status: Any


class PluginsShown(Document, frozen=True):
    """`GET /v1/plugins`: the plugins of the chain, in its order."""

    plugins: tuple[PluginShown, ...]


class ReservationShown(Document, frozen=True):
    """A reservation on a node. `available` says whether pods may still take it."""

    name: str
    uid: str
    allocatable: AmountShown
    allocated: AmountShown
    available: bool


class ScheduledNode(Document, frozen=True):
    """`GET /v1/scheduling/nodes/{node}`: a node as scheduling plugins saw it in the last cycle."""

    node: str
    generation: int
    allocatable: AmountShown
    requested: AmountShown
    remaining: AmountShown
    pods: tuple[str, ...]
    nominated_pods: tuple[str, ...]
    reservations: tuple[ReservationShown, ...]


class DiagnosisInShort(Document, frozen=True):
    """Why a pod found no node, in one line."""

    pod: str
    text: str


class DiagnosesShown(Document, frozen=True):
    """`GET /v1/scheduling/diagnoses`: the newest ones first."""

    diagnoses: tuple[DiagnosisInShort, ...]


class FailureShown(Document, frozen=True):
    """One reason for which nodes were refused, and how many (`nodes`)."""

    reason: str
    plugin: str
    preemption_might_help: bool
    nodes: int
    rejection: str = "capacity"
    """The class: `capacity`, `policy`, `peers`, `reserved` or `stale`."""
    code: str = ""
    """The status code, such as `Unschedulable` or `UnschedulableAndUnresolvable`."""


class DiagnosisShown(Document, frozen=True):
    """`GET /v1/scheduling/diagnoses/{namespace}/{name}`: why a pod found no node among `nodes`.

    `rejection` is the class of the rejection as a whole. It was found `waits_seconds` ago for the first time, and
    `tried_seconds_ago` for the last time.
    """

    pod: str
    uid: str
    text: str
    nodes: int
    nominated_node: str
    pre_filter_message: str
    post_filter_message: str
    suggestion: str
    failures: tuple[FailureShown, ...]
    rejection: str = "capacity"
    waits_seconds: float = 0.0
    tried_seconds_ago: float = 0.0


class DebugFlagsShown(Document, frozen=True):
    """`/v1/scheduling/debug`: how many nodes' scores are logged for a pod (0: none), and whether refusals of filters are."""

    scores: int
    filters: bool


class PluginCallCounts(Document, frozen=True):
    """The calls to a plugin since its registration. `turned_away` were not made, because too many were under way."""

    made: int = 0
    failed: int = 0
    timed_out: int = 0
    turned_away: int = 0
    in_flight: int = 0
    last_error: str | None = None


class NodePluginShown(Document, frozen=True):
    """A socket in the folder of node plugins, and the plugin behind it as far as that is known."""

    type: str | None
    name: str | None
    state: str
    since_seconds: float
    socket: str
    endpoint: str | None = None
    versions: tuple[str, ...] = ()
    last_error: str | None = None
    retry_in_seconds: float | None = None
    calls: PluginCallCounts = PluginCallCounts()


class NodePluginsShown(Document, frozen=True):
    """`GET /v1/plugins`: the node plugins of an agent. `directory` is null if the settings name none; `more` counts by state the sockets
    that are not listed."""

    node: str
    plugins: tuple[NodePluginShown, ...]
    directory: str | None = None
    more: dict[str, int] = msgspec.field(default_factory=dict)


class StrategyDecisionShown(Document, frozen=True):
    """A decision of a strategy that stood for so many `rounds`. `action` says whether it changed anything."""

    seconds_ago: float
    rounds: int
    action: bool
    reason: str
    message: str
    inputs: dict[str, float] = msgspec.field(default_factory=dict)


class StrategyShown(Document, frozen=True):
    """A strategy. `counts` has writes, evictions and Events, each by result; `decisions` are the last ones, the latest last."""

    name: str
    stage: str
    enabled: bool
    recommend_only: bool
    state: str
    since_seconds: float
    restarts: int = 0
    last_error: str | None = None
    counts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    decisions: tuple[StrategyDecisionShown, ...] = ()


class StrategyCallback(Document, frozen=True):
    """A callback that a strategy has registered, for which `objects`."""

    objects: str
    name: str
    owner: str | None = None
    calls: int = 0
    errors: int = 0
    last_error: str | None = None
    running_seconds: float | None = None


class GroupWrite(Document, frozen=True):
    """The last value that a strategy wrote to a file of a control group; `strategy` is null if it was put back."""

    group: str
    resource: str
    value: int | str
    strategy: str | None = None


class CollectorsShown(Document, frozen=True):
    """The last round of the collectors. `left_out` counts by reason what could not be read."""

    rounds: int
    round_seconds: float
    pods: int
    left_out: dict[str, int] = msgspec.field(default_factory=dict)


class StrategiesShown(Document, frozen=True):
    """`GET /v1/qos`: the strategies of an agent. `enabled` is false if the settings name none."""

    node: str
    enabled: bool
    strategies: tuple[StrategyShown, ...]
    callbacks: tuple[StrategyCallback, ...] = ()
    writes: tuple[GroupWrite, ...] = ()
    collectors: CollectorsShown | None = None
