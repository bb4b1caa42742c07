"""What the agent shows of its strategies: `/v1/qos`, and the metric families."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hosting.metrics import Family

if TYPE_CHECKING:  # strategies are loaded only where they are wanted
    from agent.node.qos.callbacks import CallbackStatus
    from agent.node.qos.collectors import CollectorFigures
    from agent.node.qos.core.decisions import DecisionRecord
    from agent.node.qos.executor import LastWrite
    from agent.node.qos.manager import StrategyStatus


def nothing(node: str) -> bytes:
    """`/v1/qos` of an agent whose settings name no strategies."""
    return json.dumps(
        {"node": node, "enabled": False, "strategies": [], "callbacks": [], "writes": []}
    ).encode()


def document(
    node: str,
    statuses: "Sequence[StrategyStatus]",
    callbacks: "Sequence[CallbackStatus]",
    writes: "Sequence[LastWrite]",
    collected: "CollectorFigures",
    now_s: float,
) -> bytes:
    """The whole of `/v1/qos`. `now_s` is the moment of the same clock as the decisions' times."""
    return json.dumps(
        {
            "node": node,
            "enabled": True,
            "strategies": [_strategy(each, now_s) for each in statuses],
            "callbacks": [_callback(each) for each in callbacks],
            "writes": [
                {
                    "group": each.group,
                    "resource": each.resource.value,
                    "value": each.value,
                    "strategy": each.writer or None,
                }
                for each in writes
            ],
            "collectors": {
                "rounds": collected.rounds,
                "roundSeconds": round(collected.round_s, 4),
                "pods": collected.pods,
                "leftOut": dict(sorted(collected.left_out.items())),
            },
        }
    ).encode()


def _strategy(status: "StrategyStatus", now_s: float) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for (action, result), count in sorted(status.counts.items()):
        counts.setdefault(action, {})[result] = count
    return {
        "name": status.name,
        "stage": status.stage.value,
        "enabled": status.is_enabled,
        "recommendOnly": status.recommends_only,
        "state": status.state.value,
        "sinceSeconds": round(status.state_s, 1),
        "restarts": status.restarts,
        "lastError": status.last_error or None,
        "counts": counts,
        "decisions": [_decision(each, now_s) for each in status.decisions],
    }


def _decision(record: "DecisionRecord", now_s: float) -> dict[str, Any]:
    decision = record.decision
    return {
        "secondsAgo": round(max(now_s - record.at_s, 0.0), 1),
        "rounds": record.rounds,
        "action": decision.is_action,
        "reason": decision.reason,
        "message": decision.message,
        "inputs": {name: round(value, 6) for name, value in sorted(decision.inputs.items())},
    }


def _callback(status: "CallbackStatus") -> dict[str, Any]:
    return {
        "objects": status.object_type.value,
        "name": status.name,
        "owner": status.owner or None,
        "calls": status.calls_total,
        "errors": status.errors_total,
        "lastError": status.last_error or None,
        "runningSeconds": None if status.running_s is None else round(status.running_s, 1),
    }


def families(statuses: "Sequence[StrategyStatus]") -> Iterator[Family]:
    """The metrics of strategies."""
    yield Family(
        "gauge",
        "parley_agent_strategies",
        "Whether the strategy's gate is on (1) or off (0), by the state in which the strategy is",
        ("strategy", "state"),
        tuple(((each.name, each.state.value), float(each.is_enabled)) for each in statuses),
    )
    yield Family(
        "counter",
        "parley_agent_strategy_restarts",
        "Restarts of strategies that failed",
        ("strategy",),
        tuple(((each.name,), float(each.restarts)) for each in statuses),
    )
    yield Family(
        "counter",
        "parley_agent_strategy_actions",
        "Decisions of strategies by reason; their writes, evictions and Events by result",
        ("strategy", "action", "result"),
        tuple(
            ((each.name, *labels), float(count))
            for each in statuses
            for labels, count in sorted(each.counts.items())
        ),
    )
