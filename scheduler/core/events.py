"""Inputs and outputs of the core. Inputs are facts in the past tense; the journal and the simulator speak them too.

`now_s` and every other time is in seconds of one monotonic clock, read by the shell.
"""

from dataclasses import dataclass
from typing import TypeAlias

from protocol.reasons import ErrorCode, Reason
from protocol.values import Resources
from protocol.wire import AgentRequest, PluginResponse, PodName
from scheduler.core.model import NodeSpec, PodSpec, Reading, VmSpec

# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The cluster shows a node."""

    node: NodeSpec


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is no longer there."""

    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The cluster shows a pod that is no VM."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod that is no VM has gone."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class VmSeen:
    """The cluster shows a VM. `reading` is None where the cluster shows no sizes.

    `is_new` says that a consistent list made after this process began to serve did not hold it.
    """

    vm: VmSpec
    reading: Reading | None
    now_s: float
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class VmGone:
    """A VM's pod has gone."""

    pod: PodName
    uid: str


@dataclass(frozen=True, slots=True)
class Look:
    """A fresh look at the cluster for one pod: whether it is there, and what it shows of the size."""

    found: bool
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request was read. `look` is the fresh look that the core asked for, on the second pass."""

    ticket: int
    request: AgentRequest
    now_s: float
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time has passed; floors that the clock ends may end."""

    now_s: float


Input: TypeAlias = NodeSeen | NodeGone | PodSeen | PodGone | VmSeen | VmGone | RequestArrived | ClockTicked

# ---------------------------------------------------------------- outputs


@dataclass(frozen=True, slots=True)
class Decided:
    """A request is answered with a permit. `changed` says that the row's current permit moved."""

    ticket: int
    response: PluginResponse
    pod: PodName
    node: str
    requested: Resources
    permit: Resources
    reasons: tuple[Reason, ...]
    sequence_number: int | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A request is answered with an error status."""

    ticket: int
    status: int
    code: ErrorCode
    message: str
    last_sequence_number: int | None = None
    current_started_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HungUp:
    """The connection is closed without a response, because any answer but 200 is fatal to this caller."""

    ticket: int
    pod: PodName
    why: str


@dataclass(frozen=True, slots=True)
class LookNeeded:
    """The request needs a fresh look at the cluster: make it and apply the request again with it."""

    ticket: int
    pod: PodName


@dataclass(frozen=True, slots=True)
class ReadNeeded:
    """A floor can end once the cluster shows less: read the VM again when convenient and report `VmSeen`."""

    pod: PodName


Answer: TypeAlias = Decided | Refused | HungUp | LookNeeded
Output: TypeAlias = Answer | ReadNeeded
