"""The meaning of each code for people, and its remedy: shown by `parley explain`, and the source of the reference pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from protocol.reasons import ErrorCode, ReasonCode


@dataclass(frozen=True, slots=True)
class Advice:
    """`meaning` is a clause that follows the VM's name and a colon, without a full stop; `remedy` is a sentence that says what to do."""

    meaning: str
    remedy: str


ADVICE: Final[Mapping[ReasonCode, Advice]] = MappingProxyType(
    {
        ReasonCode.STOPPED: Advice(
            "growth is stopped by the scheduler's configuration",
            "Set `stop: false` under `growth` in the scheduler's configuration; the file is read again by itself.",
        ),
        ReasonCode.RECOMMEND_ONLY: Advice(
            "growth is only recommended here, and none is permitted",
            "Take it out of `recommendOnly`, `recommendOnlyNamespaces` or `recommendOnlyVms` under `growth` in the scheduler's configuration, or resize it by hand.",
        ),
        ReasonCode.VM_BOUNDS: Advice(
            "it is at its own maximum",
            "Raise the VM's maximum where its bounds are written, if it should have more.",
        ),
        ReasonCode.OWN_CPUS: Advice(
            "it has CPUs of its own, and gets no more of them now",
            "Free whole cores of its NUMA node, or move it; with `NodeNUMAResource` it gets them by itself.",
        ),
        ReasonCode.MIGRATING: Advice(
            "it is being migrated away and keeps its size until it has arrived",
            "Wait for the migration's end; a migration that hangs is seen at the object that asks for it.",
        ),
        ReasonCode.UNSETTLED: Advice(
            "the scheduler has just started and does not know yet what this VM may still use",
            "Wait some seconds; if it lasts, look whether the VM's agent runs and reaches the scheduler.",
        ),
        ReasonCode.COMPUTE_UNIT: Advice(
            "no usable compute unit is known for it, so nobody knows in which steps it may grow",
            "Give the VM a compute unit, or its node one in the scheduler's configuration.",
        ),
        ReasonCode.NODE_HEADROOM: Advice(
            "its node has no more room",
            "Shrink, move or bound another holder of the node, give the node more, or move this VM to another node.",
        ),
        ReasonCode.POOL: Advice(
            "its pool admits no more",
            "Raise the pool's limit or the quota behind it, or shrink another VM of the pool (`parley pools`).",
        ),
        ReasonCode.POOL_SATURATED: Advice(
            "its pool admitted no more a short while ago and is not asked again before its cool-down is over",
            "Wait for the cool-down, raise the pool's limit or quota, or shrink another VM of the pool (`parley pools`).",
        ),
        ReasonCode.POOL_PARKED: Advice(
            "a plugin finds its pool, or the VM in it, wrong at any size, and is not asked again before that is changed",
            "Correct the pool or the VM as the message says; `POST /v1/pools/NAME/unpark` asks again without a change.",
        ),
        ReasonCode.POOL_FAILED: Advice(
            "a plugin of its pool failed or did not answer, so nothing is granted",
            "Look at the plugin and its logs (`/v1/plugins` of the scheduler); growth goes on by itself once it answers.",
        ),
        ReasonCode.PROBE_DEADLINE: Advice(
            "the plugins of its pool answer too slowly, so only what they had admitted in time is granted",
            "Look why the pool's plugins are slow (`/v1/plugins` of the scheduler); the next request goes on where this one stopped.",
        ),
        ReasonCode.BYSTANDER: Advice(
            "another agent with the extension owns this VM, and this one is not listened to",
            "End the agent that should not serve this VM; one agent on each node is enough.",
        ),
        ReasonCode.LOWERED: Advice(
            "what was permitted before has been lowered since, and its agent has to ask anew",
            "Nothing; the agent asks anew by itself.",
        ),
        ReasonCode.ROOM_ELSEWHERE: Advice(
            "another node has room for it at the size that it asks for",
            "Move it there, or allow its eviction by `parley.dev/evict-when-stuck`, if it can be made anew.",
        ),
        ReasonCode.PLACED_ELSEWHERE: Advice(
            "it is on another node already",
            "Nothing for this VM; look whether an agent on the old node still serves it.",
        ),
        ReasonCode.OTHER: Advice(
            "the scheduler names a reason that this version does not know",
            "Read the message; a later version of this command knows the code.",
        ),
    }
)
"""Of every `ReasonCode`."""


ERROR_ADVICE: Final[Mapping[ErrorCode, Advice]] = MappingProxyType(
    {
        ErrorCode.MALFORMED: Advice(
            "the scheduler cannot read what its agent sends",
            "Compare the versions of agent and scheduler; the message names each field at fault.",
        ),
        ErrorCode.UNSUPPORTED_VERSION: Advice(
            "its agent and the scheduler share no version of the protocol",
            "Bring agent and scheduler to versions that overlap (VERSIONING.md).",
        ),
        ErrorCode.METRICS_REQUIRED: Advice(
            "the protocol's version between its agent and the scheduler takes no request without metrics, and there are none",
            "Look why the agent gets no metrics of the VM, or update the older program.",
        ),
        ErrorCode.WRONG_METHOD: Advice(
            "its agent calls the scheduler with another method than POST",
            "Look whether a proxy between agent and scheduler changes requests.",
        ),
        ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED: Advice(
            "an agent without the extension asks for it, and the scheduler's configuration does not allow that",
            "Run Parley's agent on the node, or start the scheduler with `--published-agents` for it.",
        ),
        ErrorCode.UNKNOWN_POD: Advice(
            "the scheduler's cluster shows no such VM",
            "Look whether the VM is described where the scheduler reads its cluster from, under this namespace and name.",
        ),
        ErrorCode.WRONG_POD_UID: Advice(
            "its agent speaks of an earlier VM of the same name",
            "Wait until the agent has seen the new one; if it lasts, restart the node's agent.",
        ),
        ErrorCode.WRONG_NODE: Advice(
            "an agent asks for it that has shown to be another node's",
            "Look which node the agent's certificate or token names, and where the cluster places the VM; if nobody set that up, somebody has "
            "another node's credentials.",
        ),
        ErrorCode.SEQUENCE_REUSED: Advice(
            "a sequence number came twice with different requests",
            "Nothing, the agent goes on above it; if it lasts, two programs use one agent's identity.",
        ),
        ErrorCode.SEQUENCE_STALE: Advice(
            "its agent's request was older than one that the scheduler has seen",
            "Nothing, the agent goes on above it; if it lasts, two programs use one agent's identity.",
        ),
        ErrorCode.AGENT_SUPERSEDED: Advice(
            "a later agent has taken this VM over, and the earlier one is not listened to any more",
            "If two agents run on the node, end one of them; the one that stays takes the VM by itself.",
        ),
        ErrorCode.OVERLOADED: Advice(
            "too many requests wait at the scheduler, and growth has to come again",
            "Wait; if it lasts, look at the scheduler's latency and at slow plugins of pools.",
        ),
        ErrorCode.NOT_LEADER: Advice(
            "its agent asks a scheduler that does not lead",
            "Wait for the next leader; if it lasts, look at the Lease and at the schedulers' logs.",
        ),
        ErrorCode.CLUSTER_UNREACHABLE: Advice(
            "the scheduler cannot read the cluster, and needs a look at it for this VM",
            "Look whether the API server (or the cluster's file) can be read from the scheduler.",
        ),
        ErrorCode.INTERNAL: Advice(
            "the scheduler failed over the request, by a fault of its own",
            "Look at the scheduler's log for the error, and report it.",
        ),
        ErrorCode.NOT_FOUND: Advice(
            "the program serves nothing at this path",
            "Compare the versions of the command and the program; `/v1/openapi.json` of the program lists its paths.",
        ),
        ErrorCode.TOO_LARGE: Advice(
            "the body of the request is longer than the path reads",
            "Send less; the limit is part of the message.",
        ),
        ErrorCode.FORBIDDEN: Advice(
            "the caller may not do this from where it calls",
            "Call from the program's own machine, or start the program with the option that the message names.",
        ),
        ErrorCode.UNAUTHORISED: Advice(
            "a bearer token is needed, and none or a wrong one was shown",
            "Show the token that the program was started with (`--token-file`).",
        ),
        ErrorCode.UNKNOWN_NODE: Advice(
            "the scheduler knows no node of this name",
            "Look at the names in `parley nodes`.",
        ),
        ErrorCode.UNKNOWN_VM: Advice(
            "no VM of this name is known",
            "Look at the names in `parley vms -A`, and whether its object is labelled to be scaled.",
        ),
        ErrorCode.VM_NOT_SCALED: Advice(
            "the agent knows the VM, and does not scale it",
            "Mend what the message names: the VM's annotations, bounds or labels; it is looked at again by itself.",
        ),
        ErrorCode.UNKNOWN_POOL: Advice(
            "there is no pool of this name",
            "Look at the names in `parley pools`.",
        ),
        ErrorCode.NOTHING_KNOWN: Advice(
            "nothing is remembered under this name",
            "Ask again after the next attempt; what is remembered does not survive a restart of the program.",
        ),
        ErrorCode.CONFLICT: Advice(
            "the object has changed meanwhile, or is there already",
            "Read it again, and send the change once more.",
        ),
        ErrorCode.INSUFFICIENT_RESOURCES: Advice(
            "a plugin of the pool refuses the change, because a quota or the cluster is full",
            "Ask for less, or raise the limit that the message names.",
        ),
        ErrorCode.INVALID_SPEC: Advice(
            "a plugin of the pool finds the description wrong, whatever its size",
            "Correct the description as the message says.",
        ),
        ErrorCode.NOT_READY: Advice(
            "the program has not read everything yet that it needs",
            "Wait some seconds; if it lasts, look at the program's `/readyz` and its log.",
        ),
        ErrorCode.PLUGIN_FAILED: Advice(
            "the page of a plugin failed, or is too large",
            "Look at the program's log for the plugin's error.",
        ),
        ErrorCode.OTHER: Advice(
            "the scheduler refuses the request with an error that this version does not know",
            "Read the message; a later version of this command knows the code.",
        ),
    }
)
"""Of every `ErrorCode`."""
