"""The knowledge of one VM, and the causes that a size can have: their codes, their meanings and the advice."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from parley.reach.ports import NoAnswer
from protocol.advice import ADVICE, ERROR_ADVICE, Advice
from protocol.agent_pages import VmInFull
from protocol.explaining import Explanation, ProgressCode
from protocol.pages import DiagnosisShown
from protocol.reasons import REJECTION_OF_LIMIT, ErrorCode, ReasonCode, RejectionClass


class CauseCode(enum.StrEnum):
    """Causes that neither a limit of the scheduler nor an error of a request names. A script may rely on the values."""

    NOBODY_ANSWERS = "nobody-answers"
    UNKNOWN_VM = "unknown-vm"
    UNSCHEDULABLE = "unschedulable"
    GONE = "gone"
    NOT_SCALED = "not-scaled"
    SUPERSEDED = "superseded"
    SCHEDULER_SILENT = "scheduler-silent"
    AGENT_SILENT = "agent-silent"
    VM_UNSEEN = "vm-unseen"
    CGROUP_MISMATCH = "cgroup-mismatch"
    CONTAINER_DOWN = "container-down"
    RESIZE_FAILS = "resize-fails"
    RESIZE_REFUSED = "resize-refused"
    RESIZE_STALLED = "resize-stalled"
    DOWNSCALE_REFUSED = "downscale-refused"
    INFORMANT_SILENT = "informant-silent"
    INFORMANT_SUSPENDED = "informant-suspended"
    METRICS_STALE = "metrics-stale"
    METRICS_MISSING = "metrics-missing"
    WAITING = "waiting"
    STARTING = "starting"
    GROWING = "growing"
    SHRINKING = "shrinking"
    AT_MINIMUM = "at-minimum"
    PERMITTED = "permitted"
    """Its agent gets all that it asks for, and does not tell us why it asks for no more."""
    SATISFIED = "satisfied"
    """It has what it wants."""


CAUSE_ADVICE: Final[Mapping[CauseCode, Advice]] = MappingProxyType(
    {
        CauseCode.NOBODY_ANSWERS: Advice(
            "neither a scheduler nor an agent answers this command",
            "Look whether both programs run, and name their addresses with --scheduler and --agent.",
        ),
        CauseCode.UNKNOWN_VM: Advice(
            "nobody who answers knows a VM of this name", "Look at the names with `parley vms -A`."
        ),
        CauseCode.UNSCHEDULABLE: Advice(
            "it waits to be scheduled, because no node can take it",
            "Make what it lacks, as the reasons of the nodes say; it is tried again by itself when something changes.",
        ),
        CauseCode.GONE: Advice(
            "it has gone; this is what the scheduler remembers of it", "Nothing; it holds nothing any more."
        ),
        CauseCode.NOT_SCALED: Advice(
            "its agent knows it and does not scale it", "Correct the VM as the reasons say."
        ),
        CauseCode.SUPERSEDED: Advice(
            "another agent owns it, and this one is superseded and lies dormant",
            "If two agents serve this node, end one of them; the one that stays takes the VM by itself.",
        ),
        CauseCode.SCHEDULER_SILENT: Advice(
            "its agent gets no usable answer from a scheduler, so nothing grows",
            "Look whether a scheduler runs and leads, and whether the agent's `scheduler` setting and the network lead to it.",
        ),
        CauseCode.AGENT_SILENT: Advice(
            "no agent asks the scheduler for it, so nothing is decided",
            "Look whether the agent of the VM's node runs and reaches the scheduler.",
        ),
        CauseCode.VM_UNSEEN: Advice(
            "its agent cannot see the VM through its back end",
            "Look at the VM and at what the agent's back end needs: the API server, the socket, the file.",
        ),
        CauseCode.CGROUP_MISMATCH: Advice(
            "its control groups do not allow the size that its status tells",
            "Wait a minute: its agent mends it by another size. If that does not help, delete the pod, so that it is made anew.",
        ),
        CauseCode.CONTAINER_DOWN: Advice(
            "a container of it does not run, so it keeps its size until that runs again",
            "Look why the container ended (`kubectl describe pod`); what it needs is remembered, and comes once it runs.",
        ),
        CauseCode.RESIZE_FAILS: Advice(
            "every resize of the VM fails in its back end",
            "Look at the error; the agent tries again by itself with growing waits.",
        ),
        CauseCode.RESIZE_REFUSED: Advice(
            "its node does not carry out the resize",
            "Make room on the node, or look why its kubelet or its guest refuses; the size is tried again by itself.",
        ),
        CauseCode.RESIZE_STALLED: Advice(
            "the resize was accepted, and the VM does not come nearer to its target",
            "Look into the guest: it may keep memory or vCPUs that are to go, or have none online that came.",
        ),
        CauseCode.DOWNSCALE_REFUSED: Advice(
            "the guest refuses to give back, because its informant finds it too tight",
            "Nothing, if the guest needs what it has; it is asked again. Else look what uses it in the guest.",
        ),
        CauseCode.INFORMANT_SILENT: Advice(
            "its informant does not answer the agent",
            "Look whether the informant runs in the guest (or on the node, for pods) and whether the agent reaches its port.",
        ),
        CauseCode.INFORMANT_SUSPENDED: Advice(
            "its informant uses another agent and has suspended this one",
            "Wait until the other agent has gone; if it lasts, end the agent that should not serve this VM.",
        ),
        CauseCode.METRICS_STALE: Advice(
            "its metrics are stale, so its size stays as it is",
            "Look at what tells the metrics: the exporter or informant in the guest, or the metrics plugin of the node.",
        ),
        CauseCode.METRICS_MISSING: Advice(
            "its agent has no metrics of it yet, so nothing says that it should have another size",
            "Look at what tells the metrics: the exporter or informant in the guest, or the metrics plugin of the node.",
        ),
        CauseCode.WAITING: Advice(
            "the scheduler holds its request back until somebody else has answered",
            "Wait; if it lasts, look at the plugins of the pool, or at the cluster that the scheduler reads.",
        ),
        CauseCode.STARTING: Advice(
            "its agent has just begun with it", "Wait some seconds; if it lasts, look at the agent's log."
        ),
        CauseCode.GROWING: Advice(
            "it is growing: the growth is permitted and under way", "Nothing; it takes its time."
        ),
        CauseCode.SHRINKING: Advice(
            "it is shrinking, as the guest agrees", "Nothing; a shrink waits for the guest's word."
        ),
        CauseCode.AT_MINIMUM: Advice(
            "it is at its own minimum and needs less",
            "Lower the VM's minimum where its bounds are written, if it should have less.",
        ),
        CauseCode.PERMITTED: Advice(
            "the scheduler permits all that its agent asks for, and its agent does not tell us why it asks for no more",
            "Look why the agent does not answer this command: it knows the VM's load, its guest and its back end.",
        ),
        CauseCode.SATISFIED: Advice(
            "it wants no other size", "Nothing; if it should have more, look at its policy and its bounds."
        ),
    }
)

PLACING_ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        RejectionClass.CAPACITY: CAUSE_ADVICE[CauseCode.UNSCHEDULABLE],
        RejectionClass.POLICY: Advice(
            "it waits to be scheduled, because a rule forbids it",
            "Change the rule that the reasons name, such as a quota, or the pod; another node would not help.",
        ),
        RejectionClass.PEERS: Advice(
            "it waits to be scheduled together with others",
            "Look at the others of its gang: all of them need room at once.",
        ),
        RejectionClass.RESERVED: Advice(
            "it waits to be scheduled, because the room is kept for others",
            "Look at the reservations, and which of them the pod may use.",
        ),
        RejectionClass.STALE: Advice(
            "it waits to be scheduled, because too little is known",
            "Wait: that changes by itself; if it lasts, look at what should tell it, such as the agents of the nodes.",
        ),
    }
)
"""Of a pod that waits, by the class of its rejection."""

CPU_REFUSED: Final = Advice(
    CAUSE_ADVICE[CauseCode.DOWNSCALE_REFUSED].meaning,
    "Nothing, if the guest needs its CPUs; it is asked again. Else look what keeps them busy in the guest.",
)
"""Of a refused shrink that would have taken CPUs alone."""


@dataclass(frozen=True, slots=True)
class SizeCause:
    """Why a VM has its size. `code` is a `CauseCode`, `ReasonCode`, `ErrorCode` or `ProgressCode`; `detail` has the numbers, and may be empty;
    `headline` replaces the meaning of the advice if names are known. `rejection` is the class of a rejection, None for all that is none."""

    code: str
    advice: Advice
    detail: str = ""
    headline: str = ""
    rejection: str | None = None

    @property
    def meaning(self) -> str:
        """The meaning for this VM: the clause of the first line."""
        return self.headline or self.advice.meaning


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that both programs tell of a VM, or the reason why one of them does not. `diagnosis` is there for a pod that waits to be
    scheduled."""

    vm: str
    agent: VmInFull | NoAnswer
    scheduler: Explanation | NoAnswer
    diagnosis: DiagnosisShown | None = None


_MIGRATING: Final = ADVICE[ReasonCode.MIGRATING]
_PROGRESS: Final[Mapping[ProgressCode, Advice]] = MappingProxyType(
    {
        ProgressCode.POOL_ASKED: Advice(
            "the plugins of its pool have been asked and have not answered yet",
            "Wait; if it lasts, look at the pool's plugins (`/v1/plugins` of the scheduler).",
        ),
        ProgressCode.CLUSTER_LOOK: Advice(
            "the scheduler has to see it in the cluster first, and the last look did not help",
            "Look whether the VM is in the cluster that the scheduler reads, and whether that can be read.",
        ),
        ProgressCode.CONNECTION_CLOSED: Advice(
            "the scheduler closed the connection of its published agent, because any other answer would end it",
            "Read the message; Parley's own agent would be told the error itself.",
        ),
        ProgressCode.MIGRATION_WANTED: Advice(
            "it was chosen to leave its node, which is under pressure, and may grow until its migration has started",
            "Nothing; within seconds its migration is under way, or could not be started.",
        ),
        ProgressCode.MIGRATION_STARTED: _MIGRATING,
        ProgressCode.MIGRATION_FAILED: Advice(
            "it should leave its node, and its migration could not be started",
            "Look at what migrates VMs, and at the message.",
        ),
        ProgressCode.WAITS_FOR_ROOM: Advice(
            "it waits for room that neighbours on its node were asked for",
            "Nothing; within seconds it grows, or nobody can spare what it needs.",
        ),
        ProgressCode.ROOM_OFFERED: Advice(
            "there is room for it now, and its agent has been told", "Nothing; its agent asks at once."
        ),
        ProgressCode.OFFER_LAPSED: Advice(
            "room was kept for it, and its agent did not ask for it",
            "Look whether the VM's agent runs and reaches the scheduler, if it still wants to grow.",
        ),
        ProgressCode.YIELD_ASKED: Advice(
            "it was asked to give back room for another VM of its node",
            "Nothing; set `parley.dev/yield` if it should give more, or nothing.",
        ),
        ProgressCode.YIELDED: Advice(
            "it gave back room for another VM of its node",
            "Nothing; set `parley.dev/yield` or its priority if it should not.",
        ),
        ProgressCode.YIELD_REFUSED: Advice(
            "it was asked to give back room and has given none", "Nothing; its guest needs what it has."
        ),
        ProgressCode.MIGRATION_ENDED: Advice(
            "its migration was given up, and it stays", "Nothing; the next decision is made on this node."
        ),
    }
)


def rejection_of(code: str) -> RejectionClass | None:
    """The class of a limit; None for any other code. Neighbours that were asked for room are peers."""
    if code == ProgressCode.WAITS_FOR_ROOM:
        return RejectionClass.PEERS
    return REJECTION_OF_LIMIT.get(ReasonCode(code))


def advice_of(code: str) -> Advice:
    reason, error = ReasonCode(code), ErrorCode(code)
    if reason is not ReasonCode.OTHER:
        return ADVICE[reason]
    if error is not ErrorCode.OTHER:
        return ERROR_ADVICE[error]
    if code in set(ProgressCode):
        return _PROGRESS[ProgressCode(code)]
    return ADVICE[ReasonCode.OTHER]
