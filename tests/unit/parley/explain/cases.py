"""Both programs tell of the VM in each case that has a golden answer (`golden/NAME.txt`).

`python -m tests.unit.parley.explain.cases` writes the answers anew; look at the difference before it is kept.
"""

from pathlib import Path
from typing import Any, Final

from agent.core.condition import Health
from parley.explain.core.causes import NOT_SCALED
from parley.explain.core.evidence import CauseCode, Evidence
from parley.explain.core.lines import answer
from parley.reach.ports import NoAnswer
from protocol.agent_pages import VmInFull, read
from protocol.explaining import (
    AmountShown,
    DecisionOutcome,
    DecisionShown,
    Explanation,
    HolderShown,
    PoolCondition,
    PoolRoom,
    Presence,
    ProgressCode,
    ReasonShown,
    Room,
)
from protocol.pages import DiagnosisShown, FailureShown
from protocol.reasons import ErrorCode, ReasonCode, RejectionClass

GOLDEN: Final = Path(__file__).parent / "golden"
VM: Final = "shop/web"
NO_AGENT: Final = NoAnswer("the agent at http://10.0.0.11:10300 does not answer: connection refused")
NO_SCHEDULER: Final = NoAnswer("the scheduler at http://10.0.0.1:10299 does not answer: connection refused")
AWAY: Final = NoAnswer("the scheduler at http://10.0.0.1:10299 knows no VM shop/web", 404, "unknown-vm")


def written(cpus: float, gib: float | None = None) -> dict[str, str]:
    """So many CPUs, and as many GiB where nothing else is said, as documents have it."""
    return {"cpu": f"{cpus:g}", "memory": f"{cpus if gib is None else gib:g}Gi"}


def amount(cpus: float, gib: float | None = None) -> AmountShown:
    """The same as a part of an explanation."""
    return AmountShown(**written(cpus, gib))


def document(has: float = 2, wants: float = 2, **other: Any) -> dict[str, Any]:
    """The agent's document on a VM that has and wants so many CPUs and GiB."""
    why = f"{wants * 0.75:.2f} CPUs busy, 75% is the target"
    return {
        "vm": VM,
        "agentID": "00000000-0000-4000-8000-000000000007",
        "size": written(has),
        "target": written(has),
        "goal": written(wants),
        "goalBeforeBounds": written(wants),
        "goalReasons": {"cpu": why, "memory": "1152 MiB of memory needed, 75% is the target"},
        "goalParts": {"cpu": [{"policy": "utilisation"}], "memory": [{"policy": "utilisation"}]},
        "permit": written(has),
        "held": written(has),
        "bounds": {"min": written(1), "max": written(8)},
        "load": {"busyCPUs": wants * 0.75, "memoryUsed": 2**30, "cpuPressure": 12.0, "memoryPressure": 0.0},
        "metricsAgeSeconds": 2.1,
        "metrics": {"isStale": False, "ageSeconds": 2.1, "waitsFor": None},
        "informant": "active",
        "state": "ok",
        "stateReasons": [why],
        "faults": [],
        "standingFaults": [],
        "reasons": [],
        "refusedSizes": [],
        "scheduler": {
            "version": "v1.1",
            "supportedVersions": "v1.0 to v1.1",
            "nextSeconds": 1.4,
            "waitsFor": None,
            "leaseLeftSeconds": 22.0,
            "answeredSecondsAgo": 0.6,
            "failures": 0,
            "isUnsettled": False,
            "isMigrating": False,
        },
        "resize": {"phase": "at-rest", "to": written(has), "sinceSeconds": 60.0, "failures": 0},
        "look": {"ageSeconds": 1.0, "failures": 0, "fault": None},
        "guest": {"phase": "active", "refusedDownscale": None, "urgent": None},
        "takeover": None,
        "plan": {"nextLookSeconds": 1.4},
        "warnings": [],
    } | other


def agent_facts(told: dict[str, Any]) -> VmInFull:
    return read(told, VmInFull)


def scheduler_part(**other: Any) -> dict[str, Any]:
    return {**document()["scheduler"], **other}


def explanation(**other: Any) -> Explanation:
    """The scheduler's word on the VM: settled, with a permit for 2 CPUs, on a node and in a pool."""
    told: dict[str, Any] = {
        "vm": VM,
        "uid": "uid-web",
        "node": "n1",
        "at": "2026-03-01T12:00:00.000Z",
        "instance": "11111111-0000-4000-8000-000000000001",
        "epoch": 3,
        "permit": amount(2),
        "reserved": amount(2),
        "maximum": amount(8),
        "minimum": amount(1),
        "is_settled": True,
        "is_migrating": False,
        "is_growth_stopped": False,
        "is_recommend_only": False,
        "size": amount(2),
        "wanted": amount(2),
        "asked_seconds_ago": 0.6,
        "room": Room(
            node="n1",
            reservable=amount(8, 16),
            reserved=amount(8, 12),
            free=amount(0, 4),
            holders=(
                HolderShown(kind="vm", name="shop/batch", current=amount(3, 4), reserved=amount(3, 4)),
                HolderShown(kind="pod", name="shop/proxy", current=amount(2, 4), reserved=amount(2, 4)),
                HolderShown(kind="vm", name="shop/till", current=amount(0.5, 1), reserved=amount(0.5, 1)),
            ),
            more_holders=2,
        ),
    }
    return Explanation(**(told | other))


def limited(limit: ReasonShown, **other: Any) -> Evidence:
    """The VM wants 5 CPUs and is held back by a limit."""
    reason = {
        "code": limit.code,
        "resource": limit.resource,
        "message": limit.message,
        "retryAfterSeconds": limit.retry_after_seconds,
    }
    agent = document(wants=5, state="denied", reasons=[reason], reasonCode=limit.code)
    return Evidence(
        VM, agent_facts(agent), explanation(wanted=amount(5), limits=(limit,), is_settled=True, **other)
    )


def pool(state: PoolCondition = PoolCondition.OPEN, **other: Any) -> PoolRoom:
    """The VM's pool: 4 units, all of them held."""
    till = HolderShown(kind="vm", name="shop/till", current=amount(2), reserved=amount(2))
    told: dict[str, Any] = {
        "pool": "bank",
        "held_units": 4,
        "vm_units": 2,
        "unit": amount(1),
        "most_units": 4,
        "state": state,
        "holders": (till,),
    }
    return PoolRoom(**(told | other))


def decision(outcome: DecisionOutcome, limit: ReasonShown) -> DecisionShown:
    """A decision on the VM, 12 seconds before it is told."""
    at = "2026-03-01T11:59:48.000Z"
    return DecisionShown(
        number=7,
        at=at,
        last_at=at,
        vm=VM,
        uid="uid-web",
        node="n1",
        outcome=outcome,
        limits=(limit,),
    )


def _limit(
    code: ReasonCode, message: str, resource: str | None = None, retry_s: float | None = None
) -> ReasonShown:
    return ReasonShown(code=code.value, message=message, resource=resource, retry_after_seconds=retry_s)


def by_reason() -> dict[ReasonCode, Evidence]:
    """A case for every code of a limit, in the words of the scheduler."""
    code = ReasonCode
    return {
        code.STOPPED: limited(
            _limit(code.STOPPED, "growth is stopped by configuration"), is_growth_stopped=True
        ),
        code.RECOMMEND_ONLY: limited(
            _limit(code.RECOMMEND_ONLY, "growth is only recommended here; 5 CPU / 5Gi would be permitted"),
            is_recommend_only=True,
        ),
        code.VM_BOUNDS: limited(_limit(code.VM_BOUNDS, "the VM's maximum is 2 CPU / 2Gi"), maximum=amount(2)),
        code.OWN_CPUS: limited(
            _limit(
                code.OWN_CPUS,
                "the VM has 2 CPUs of its own: NUMA node 0 of the pod has 0 CPUs of free cores, and 4 more are needed",
            )
        ),
        code.MIGRATING: limited(
            _limit(code.MIGRATING, "the VM is being migrated away and does not grow until it has arrived"),
            is_migrating=True,
        ),
        code.UNSETTLED: Evidence(
            VM,
            agent_facts(document(wants=5)),
            explanation(
                is_settled=False,
                reserved=amount(8),
                wanted=amount(5),
                limits=(
                    _limit(
                        code.UNSETTLED, "this scheduler has just started; ask again, naming it", retry_s=0.0
                    ),
                ),
            ),
        ),
        code.COMPUTE_UNIT: limited(
            _limit(code.COMPUTE_UNIT, "no compute unit is known from the VM, the request or the node")
        ),
        code.NODE_HEADROOM: limited(
            _limit(code.NODE_HEADROOM, "the other holders leave 2 CPU of the node to this VM", "cpu")
        ),
        code.POOL: limited(
            _limit(code.POOL, "pool bank holds 4 of at most 4 units", "cpu"), pool=pool(PoolCondition.FULL)
        ),
        code.POOL_SATURATED: limited(
            _limit(
                code.POOL_SATURATED,
                "pool bank was full at 4 units a short while ago: tenant retail has 0 of its 4 units left",
                retry_s=27.0,
            ),
            pool=pool(PoolCondition.SATURATED, most_units=None),
        ),
        code.POOL_PARKED: limited(
            _limit(code.POOL_PARKED, "pool bank is parked until it is changed: no zone of that name"),
            pool=pool(PoolCondition.PARKED, most_units=None),
        ),
        code.POOL_FAILED: limited(
            _limit(code.POOL_FAILED, "pool bank: doorman did not answer within 0.5 s", retry_s=2.0),
            pool=pool(PoolCondition.FAILED, most_units=None),
        ),
        code.PROBE_DEADLINE: limited(
            _limit(code.PROBE_DEADLINE, "pool bank had admitted 3 units when the time for asking was over"),
            pool=pool(most_units=None),
        ),
        code.BYSTANDER: Evidence(
            VM,
            NO_AGENT,
            explanation(limits=(_limit(code.BYSTANDER, "an agent with the extension owns this VM"),)),
        ),
        code.LOWERED: limited(
            _limit(
                code.LOWERED, "what this request was permitted has been lowered since; ask anew", retry_s=0.0
            )
        ),
        # No scheduler names it alone: here it is the cause, so that its own words are seen.
        code.ROOM_ELSEWHERE: limited(_limit(code.ROOM_ELSEWHERE, "node n2 has room for 5 CPU / 5Gi")),
        code.PLACED_ELSEWHERE: limited(_limit(code.PLACED_ELSEWHERE, "the pod is on n2 already")),
        code.OTHER: limited(
            ReasonShown(
                code="phase-of-the-moon", message="growth waits for the new moon", retry_after_seconds=60
            )
        ),
    }


def by_health() -> dict[Health, Evidence]:
    """A case for every state of an agent's runner, where nothing but the agent answers."""
    refused = {
        "code": "node-headroom",
        "resource": "cpu",
        "message": "the other holders leave 2 CPU of the node to this VM",
    }
    silence = {"peer": "scheduler", "code": None, "status": None, "message": "connection refused"}
    found = {
        Health.STARTING: document(
            state="starting",
            stateReasons=["waiting for the first look at the VM"],
            size=None,
            target=None,
            permit=None,
        ),
        Health.OK: document(),
        Health.DENIED: document(wants=5, state="denied", reasons=[refused]),
        Health.MIGRATING: document(
            state="migrating",
            stateReasons=["the VM is being migrated away"],
            scheduler=scheduler_part(isMigrating=True),
        ),
        Health.STUCK: document(
            wants=5,
            state="stuck",
            standingFaults=[silence],
            held=written(0, 0),
            scheduler=scheduler_part(failures=29, leaseLeftSeconds=0.0, answeredSecondsAgo=95.0),
        ),
        Health.DORMANT: document(
            state="dormant",
            stateReasons=["superseded by another agent of this VM; asks for it again in 5 s"],
            takeover={"timesInARow": 2, "nextLifeSeconds": 5.0},
            scheduler=scheduler_part(nextSeconds=None, waitsFor="takeover"),
        ),
    }
    return {health: Evidence(VM, agent_facts(told), NO_SCHEDULER) for health, told in found.items()}


def waiting(rejection: RejectionClass = RejectionClass.CAPACITY) -> Evidence:
    """A pod that waits to be scheduled, so neither program knows a VM."""
    failures = (
        FailureShown(
            "Insufficient cpu: the pod needs 3 CPU and the other holders leave 2 CPU",
            "LedgerFit",
            preemption_might_help=True,
            nodes=3,
            rejection=RejectionClass.CAPACITY,
            code="Unschedulable",
        ),
        FailureShown(
            "node(s) had no reservation that the pod may use",
            "Reservation",
            preemption_might_help=False,
            nodes=2,
            rejection=RejectionClass.RESERVED,
            code="UnschedulableAndUnresolvable",
        ),
    )
    found = DiagnosisShown(
        pod=VM,
        uid="uid-web",
        text="0/5 nodes are available: 2 node(s) had no reservation that the pod may use, 3 Insufficient cpu.",
        nodes=5,
        nominated_node="",
        pre_filter_message="",
        post_filter_message="",
        suggestion="",
        failures=failures,
        rejection=rejection,
        waits_seconds=754.0,
        tried_seconds_ago=3.0,
    )
    nobody = NoAnswer("the agent at http://10.0.0.11:10300 knows no VM shop/web", 404)
    return Evidence(VM, nobody, AWAY, found)


def by_cause() -> dict[CauseCode, Evidence]:
    def both(told: dict[str, Any], **other: Any) -> Evidence:
        return Evidence(VM, agent_facts(told), explanation(**other))

    def trouble(peer: str, message: str) -> list[dict[str, Any]]:
        return [{"peer": peer, "code": None, "status": None, "message": message}]

    code = CauseCode
    asking = document(wants=5, scheduler=scheduler_part(nextSeconds=None, waitsFor="answer"))
    not_scaled = NoAnswer("shop/web is not scaled: its containers have no limits", 404, NOT_SCALED)
    nothing = explanation(permit=amount(0), reserved=amount(0), size=None, wanted=None, room=None)
    gone = {name: getattr(nothing, name) for name in ("permit", "reserved", "size", "wanted", "room")}
    return {
        code.NOBODY_ANSWERS: Evidence(VM, NO_AGENT, NO_SCHEDULER),
        code.UNKNOWN_VM: Evidence(
            VM, NoAnswer("the agent at http://10.0.0.11:10300 knows no VM shop/web", 404), AWAY
        ),
        code.UNSCHEDULABLE: waiting(),
        code.GONE: Evidence(
            VM,
            NoAnswer("the agent at http://10.0.0.11:10300 knows no VM shop/web", 404, "unknown-vm"),
            explanation(presence=Presence.GONE, gone_seconds_ago=20.0, **gone),
        ),
        code.NOT_SCALED: Evidence(VM, not_scaled, explanation()),
        code.SUPERSEDED: by_health()[Health.DORMANT],
        code.SCHEDULER_SILENT: by_health()[Health.STUCK],
        code.AGENT_SILENT: Evidence(VM, NO_AGENT, explanation(asked_seconds_ago=72.0)),
        code.VM_UNSEEN: both(
            document(
                wants=5,
                state="stuck",
                look={
                    "ageSeconds": 92.0,
                    "failures": 9,
                    "fault": "the pod cannot be read: connection refused",
                },
            )
        ),
        code.CGROUP_MISMATCH: both(
            document(
                state="denied",
                containers={
                    "notRunning": None,
                    "mismatch": "the pod's control group allows 64 MiB of memory where 512 MiB is in force by its status",
                    "mismatched": ["memory"],
                    "restarts": 1,
                    "lastEnd": "container main ended: Error, exit code 1",
                },
            )
        ),
        code.CONTAINER_DOWN: both(
            document(
                wants=5,
                containers={
                    "notRunning": "container main does not run (CrashLoopBackOff)",
                    "mismatch": None,
                    "mismatched": [],
                    "restarts": 3,
                    "lastEnd": "container main ended: OOMKilled, exit code 137",
                },
                counts={"ends": {"OOMKilled": 3}},
            )
        ),
        code.RESIZE_FAILS: both(
            document(
                wants=5,
                state="stuck",
                permit=written(5),
                standingFaults=trouble("VM", "the API server failed: status 500"),
                resize={
                    "phase": "failing",
                    "to": written(5),
                    "sinceSeconds": 57.0,
                    "failures": 14,
                    "fault": "the API server failed: status 500",
                    "retryInSeconds": 4.2,
                },
            ),
            permit=amount(5),
            wanted=amount(5),
        ),
        code.RESIZE_REFUSED: both(
            document(
                state="denied",
                refusedSizes=[
                    {
                        "kind": "growth",
                        "size": written(2),
                        "target": written(5),
                        "why": "Deferred: Node didn't have enough resource: cpu",
                        "times": 2,
                        "retryInSeconds": 17.5,
                    }
                ],
            )
        ),
        code.RESIZE_STALLED: both(
            document(
                wants=5,
                permit=written(5),
                target=written(5),
                resize={"phase": "stalled", "to": written(5), "sinceSeconds": 60.0},
            ),
            permit=amount(5),
        ),
        code.DOWNSCALE_REFUSED: both(
            document(
                has=6,
                wants=2,
                standingFaults=trouble("informant", "downscale refused: 6 GiB are in use"),
                guest={
                    "phase": "active",
                    "refusedDownscale": {**written(5), "retryInSeconds": 4.2},
                    "urgent": None,
                },
            ),
            permit=amount(6),
            size=amount(6),
        ),
        code.INFORMANT_SILENT: both(
            document(state="stuck", standingFaults=trouble("informant", "connection refused"))
        ),
        code.INFORMANT_SUSPENDED: both(
            document(
                goalReasons=dict.fromkeys(("cpu", "memory"), "the informant has not resumed this agent"),
                guest={"phase": "suspended", "hasSuspended": True},
            )
        ),
        code.METRICS_STALE: both(
            document(
                has=4,
                wants=4,
                metricsAgeSeconds=62.0,
                metrics={"isStale": True, "ageSeconds": 62.0, "waitsFor": None},
                standingFaults=trouble("metrics", "no answer within 2 s"),
                goalReasons=dict.fromkeys(("cpu", "memory"), "the metrics are stale"),
            )
        ),
        code.METRICS_MISSING: both(
            document(
                metricsAgeSeconds=None,
                load=None,
                metrics={"isStale": False, "ageSeconds": None, "waitsFor": None},
                standingFaults=trouble("metrics", "no answer within 2 s"),
                goalReasons=dict.fromkeys(("cpu", "memory"), "no metrics yet"),
            )
        ),
        # What it waits for, the scheduler would know.
        code.WAITING: Evidence(VM, agent_facts(asking), NO_SCHEDULER),
        code.STARTING: by_health()[Health.STARTING],
        code.GROWING: both(
            document(
                wants=5,
                permit=written(5),
                target=written(5),
                resize={"phase": "moving", "to": written(5), "sinceSeconds": 8.0},
            ),
            permit=amount(5),
        ),
        code.SHRINKING: both(document(has=5, wants=2), permit=amount(5), size=amount(5)),
        code.AT_MINIMUM: both(
            document(has=1, wants=1, goalBeforeBounds=written(0.5)), permit=amount(1), size=amount(1)
        ),
        code.PERMITTED: Evidence(
            VM, NO_AGENT, explanation(permit=amount(5), wanted=amount(5), asked_seconds_ago=6.7)
        ),
        code.SATISFIED: both(document()),
    }


def by_progress() -> dict[ProgressCode, Evidence]:
    """A case for everything that a request may wait for, and for the connection that is closed."""
    code = ProgressCode
    asked = ReasonShown(code=code.POOL_ASKED.value, message="pool bank is asked for 5 CPU / 5Gi since 0.6 s")
    look = ReasonShown(
        code=code.CLUSTER_LOOK.value, message="the last look at the cluster did not show what the VM uses"
    )
    closed = ReasonShown(
        code=code.CONNECTION_CLOSED.value,
        message="the cluster shows no size of the VM, and --trust-published is off",
    )
    return {
        code.POOL_ASKED: Evidence(
            VM, agent_facts(document(wants=5)), explanation(waiting=asked, wanted=amount(5))
        ),
        # Only the first request of a published agent waits for long, and such an agent has no page that could be asked.
        code.CLUSTER_LOOK: Evidence(
            VM,
            NO_AGENT,
            explanation(
                waiting=look,
                wanted=None,
                asked_seconds_ago=None,
                is_settled=False,
                permit=amount(0),
                reserved=amount(8),
                decisions=(decision(DecisionOutcome.HELD, look),),
            ),
        ),
        code.CONNECTION_CLOSED: Evidence(VM, NO_AGENT, explanation(refusal=closed, limits=(closed,))),
    }


def by_migration() -> dict[ProgressCode, Evidence]:
    """A case for everything that may become of a migration: the scheduler tells of one that is under way with `is_migrating` and a decision, and of the
    others with `migration`, too. None of these codes is the cause: the VM wants 5 CPUs, and its node is full."""
    code = ProgressCode
    full = _limit(ReasonCode.NODE_HEADROOM, "the other holders leave 2 CPU of the node to this VM", "cpu")
    leaves = _limit(
        ReasonCode.MIGRATING, "the VM is being migrated away and does not grow until it has arrived"
    )
    messages = {
        code.MIGRATION_WANTED: ("the VM is chosen to leave node n1, which is under pressure", None),
        code.MIGRATION_STARTED: ("the VM is leaving node n1", None),
        code.MIGRATION_FAILED: ("no other node has room for it", 30.0),
        code.MIGRATION_ENDED: ("the migration was given up, and the VM stays on node n1", 48.0),
    }
    found: dict[ProgressCode, Evidence] = {}
    for each, (message, retry_s) in messages.items():
        said = ReasonShown(code=each.value, message=message, retry_after_seconds=retry_s)
        decisions = (decision(DecisionOutcome.DENIED, full), decision(DecisionOutcome.MIGRATION, said))
        if each is code.MIGRATION_STARTED:
            found[each] = limited(leaves, is_migrating=True, decisions=decisions)
        else:
            found[each] = limited(full, migration=said, decisions=decisions)
    return found


def by_negotiation() -> dict[ProgressCode, Evidence]:
    """A case for everything that a negotiation says: of a VM that wants 5 CPUs on a full node, and of one that has what it wants and was asked."""
    code = ProgressCode
    full = _limit(ReasonCode.NODE_HEADROOM, "the other holders leave 2 CPU of the node to this VM", "cpu")
    messages = {
        code.WAITS_FOR_ROOM: "waits for 3 CPUs that shop/till was asked for 0.4 s ago",
        code.ROOM_OFFERED: "3 CPUs more are kept for it until its agent asks, for 9 s at most",
        code.OFFER_LAPSED: "3 CPUs were kept for it, and its agent did not ask",
        code.YIELD_ASKED: "was asked 0.4 s ago to give back 2 CPUs for shop/till (priority 1000)",
        code.YIELDED: "gave back 2 CPUs to shop/till (priority 1000), asked 3.1 s ago",
        code.YIELD_REFUSED: "gave back nothing to shop/till (priority 1000), asked 3.1 s ago",
    }
    found: dict[ProgressCode, Evidence] = {}
    for each, message in messages.items():
        said = ReasonShown(code=each.value, message=message)
        if each in (code.WAITS_FOR_ROOM, code.ROOM_OFFERED):
            found[each] = limited(full, negotiation=said)
        else:
            found[each] = Evidence(VM, agent_facts(document()), explanation(negotiation=said))
    return found


def by_error() -> dict[ErrorCode, Evidence]:
    """A case for every error of a request that the scheduler answers an agent, with its status and in its words."""
    code = ErrorCode
    answers = {
        code.MALFORMED: (400, "resources.cpu: must be above 0, is 0"),
        code.UNSUPPORTED_VERSION: (400, "protocol version v2.0 is not spoken here; use v1.0 to v1.1"),
        code.METRICS_REQUIRED: (400, "metrics: must not be null in v1.0"),
        code.WRONG_METHOD: (400, "must be POST"),
        code.UNKNOWN_POD: (404, "the cluster shows no VM with the pod shop/web"),
        code.WRONG_POD_UID: (404, "pod shop/web has UID uid-web"),
        code.WRONG_NODE: (
            403,
            "pod shop/web is not on a node of spiffe://parley/agent/n2, which may ask for VMs on n2 only",
        ),
        code.SEQUENCE_REUSED: (409, "the last sequence number was 12"),
        code.SEQUENCE_STALE: (409, "the last sequence number was 12"),
        code.AGENT_SUPERSEDED: (
            409,
            "agent 00000000-0000-4000-8000-000000000009, started at 1772366400000 ms, owns this VM",
        ),
        code.OVERLOADED: (429, "too many requests are waiting; ask again later"),
        code.NOT_LEADER: (503, "another scheduler leads"),
        code.CLUSTER_UNREACHABLE: (503, "the cluster cannot be read now"),
        code.INTERNAL: (500, "internal error"),
    }
    found = {}
    for each, (status, message) in answers.items():
        said = f"status {status} {each.value}: {message}"
        fault = {"peer": "scheduler", "code": each.value, "status": status, "message": said}
        told = document(wants=5, state="stuck", standingFaults=[fault], scheduler=scheduler_part(failures=4))
        found[each] = Evidence(VM, agent_facts(told), explanation())
    # Such an agent has no page that could be asked.
    unwelcome = ReasonShown(
        code=code.PUBLISHED_AGENT_NOT_ALLOWED.value,
        message="callers without the extension are not served on node n1 (--published-agents)",
    )
    found[code.PUBLISHED_AGENT_NOT_ALLOWED] = Evidence(
        VM, NO_AGENT, explanation(refusal=unwelcome, limits=(unwelcome,))
    )
    return found


def cases() -> dict[str, Evidence]:
    """Every case by the name of its golden answer."""
    return {
        **{f"reason-{each.value}": evidence for each, evidence in by_reason().items()},
        **{f"agent-{each.value}": evidence for each, evidence in by_health().items()},
        **{f"cause-{each.value}": evidence for each, evidence in by_cause().items()},
        **{f"progress-{each.value}": evidence for each, evidence in by_progress().items()},
        **{each.value: evidence for each, evidence in by_migration().items()},
        **{f"negotiation-{each.value}": evidence for each, evidence in by_negotiation().items()},
        **{f"error-{each.value}": evidence for each, evidence in by_error().items()},
    }


def main() -> None:
    """Write all golden answers anew."""
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name, evidence in cases().items():
        (GOLDEN / f"{name}.txt").write_text("\n".join(answer(evidence).lines) + "\n")


if __name__ == "__main__":
    main()
