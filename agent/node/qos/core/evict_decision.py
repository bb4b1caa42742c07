"""The result of a round of evictions, for `/v1/qos`, metrics and the log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.actions import EvictOutcome, EvictResult, StrategyDecision
from agent.node.qos.core.evicting import EvictionEngine, EvictionPick, EvictionTask

DID: Final = {
    EvictResult.EVICTED: "evicted",
    EvictResult.GONE: "gone",
    EvictResult.RECOMMENDED: "recommended",
    EvictResult.REFUSED: "refused",
    EvictResult.UNAVAILABLE: "failed",
    EvictResult.FAILED: "failed",
}
"""The code of a round in which somebody was picked: the first of these that happened."""


@dataclass(frozen=True, slots=True)
class Asked:
    pick: EvictionPick
    outcome: EvictOutcome

    def text(self) -> str:
        more = f" ({self.outcome.message})" if self.outcome.message else ""
        return f"{self.pick.pod.full_name} {self.outcome.result}{more}, for {self.pick.task.name}"


def reason_of(pick: EvictionPick) -> str:
    """Why a pod is evicted, for its owner."""
    task = pick.task
    share = amount_text(task, task.shares.get(pick.pod.uid, 0))
    return f"{task.name}: {task.message}; {amount_text(task, pick.lacking)} to release, of which this pod has {share}"


def amount_text(task: EvictionTask, amount: int) -> str:
    return f"{-(-amount // 2**20)} MiB" if task.target.startswith("memory") else f"{amount}m CPU"


def decision(engine: EvictionEngine, asked: Sequence[Asked], now_s: float) -> StrategyDecision:
    """The round in one sentence. `now_s` is the time at its end."""
    tasks = engine.tasks
    parts = [*(each.text() for each in asked), *_states(engine, now_s)]
    codes = {DID[each.outcome.result] for each in asked}
    code = next((each for each in DID.values() if each in codes), None) or _idle(engine, now_s)
    figures = {f"{task.name}.{name}": value for task in tasks for name, value in task.inputs.items()}
    figures |= {f"{task.name}.to_release": task.amount for task in tasks}
    figures |= {f"{task.name}.lacking": engine.lacking(task) for task in tasks}
    return StrategyDecision(code, "; ".join(parts), figures, is_action=bool(asked))


def _states(engine: EvictionEngine, now_s: float) -> Iterator[str]:
    yield from dict.fromkeys(task.message for task in engine.tasks)
    lacking = [task for task in engine.tasks if engine.lacking(task)]
    for task in lacking:
        yield f"{task.name} lacks {amount_text(task, engine.lacking(task))}"
    if lacking and engine.cooling_s(now_s) > 0:
        yield f"nobody is evicted for {engine.cooling_s(now_s):.0f} s"


def _idle(engine: EvictionEngine, now_s: float) -> str:
    """The code of a round in which nobody was picked."""
    tasks = engine.tasks
    if any(engine.lacking(task) for task in tasks):
        return "cooling-down" if engine.cooling_s(now_s) > 0 else "no-victim"
    if any(task.amount for task in tasks):
        return "releasing"
    return "no-pressure" if all(task.is_known for task in tasks) else "no-metric"
