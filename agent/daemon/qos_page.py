"""The agent's pages of its strategies: `/v1/qos`, and the metric families."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from agent.daemon.server import GUARDED
from hosting.metrics import Family
from hosting.problems import DocumentedAnswer, Operation
from protocol.agent_pages import (
    CollectorsShown,
    GroupWrite,
    StrategiesShown,
    StrategyCallback,
    StrategyDecisionShown,
    StrategyShown,
)

if TYPE_CHECKING:  # strategies are loaded only if they are wanted
    from agent.node.qos.callbacks import CallbackStatus
    from agent.node.qos.collectors import CollectorFigures
    from agent.node.qos.core.decisions import DecisionRecord
    from agent.node.qos.executor import LastWrite
    from agent.node.qos.manager import StrategyStatus


PAGE: Final = Operation(
    "The strategies", {200: DocumentedAnswer("The strategies.", StrategiesShown)}, "node", shared=GUARDED
)


def nothing(node: str) -> bytes:
    """`/v1/qos` of an agent whose settings name no strategies."""
    return msgspec.json.encode(StrategiesShown(node=node, enabled=False, strategies=()))


def document(
    node: str,
    statuses: "Sequence[StrategyStatus]",
    callbacks: "Sequence[CallbackStatus]",
    writes: "Sequence[LastWrite]",
    collected: "CollectorFigures",
    now_s: float,
) -> bytes:
    """The whole of `/v1/qos`. `now_s` is the moment of the same clock as the decisions' times."""
    return msgspec.json.encode(
        StrategiesShown(
            node=node,
            enabled=True,
            strategies=tuple(_strategy(each, now_s) for each in statuses),
            callbacks=tuple(map(_callback, callbacks)),
            writes=tuple(
                GroupWrite(
                    group=each.group,
                    resource=each.resource.value,
                    value=each.value,
                    strategy=each.writer or None,
                )
                for each in writes
            ),
            collectors=CollectorsShown(
                rounds=collected.rounds,
                round_seconds=round(collected.round_s, 4),
                pods=collected.pods,
                left_out=dict(sorted(collected.left_out.items())),
            ),
        )
    )


def _strategy(status: "StrategyStatus", now_s: float) -> StrategyShown:
    counts: dict[str, dict[str, int]] = {}
    for (action, result), count in sorted(status.counts.items()):
        counts.setdefault(action, {})[result] = count
    return StrategyShown(
        name=status.name,
        stage=status.stage.value,
        enabled=status.is_enabled,
        recommend_only=status.recommends_only,
        state=status.state.value,
        since_seconds=round(status.state_s, 1),
        restarts=status.restarts,
        last_error=status.last_error or None,
        counts=counts,
        decisions=tuple(_decision(each, now_s) for each in status.decisions),
    )


def _decision(record: "DecisionRecord", now_s: float) -> StrategyDecisionShown:
    decision = record.decision
    return StrategyDecisionShown(
        seconds_ago=round(max(now_s - record.at_s, 0.0), 1),
        rounds=record.rounds,
        action=decision.is_action,
        reason=decision.reason,
        message=decision.message,
        inputs={name: round(value, 6) for name, value in sorted(decision.inputs.items())},
    )


def _callback(status: "CallbackStatus") -> StrategyCallback:
    return StrategyCallback(
        objects=status.object_type.value,
        name=status.name,
        owner=status.owner or None,
        calls=status.calls_total,
        errors=status.errors_total,
        last_error=status.last_error or None,
        running_seconds=None if status.running_s is None else round(status.running_s, 1),
    )


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
