"""A node over time for the evicting strategies: pods with their use, averages, an informer that lags, an API server with moods.

The model knows the truth: which pods are on their way out, and what the node will use when they are gone.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from agent.node.qos.core.actions import EvictResult
from agent.node.qos.core.evict_tasks import EvictRules, EvictThresholds, memory_tasks
from agent.node.qos.core.evicting import (
    Evictable,
    EvictionEngine,
    EvictionLimits,
    EvictionMarks,
    EvictionPick,
)
from agent.node.qos.core.states import NodeState, PodState, QosClass
from protocol.values import ZERO, Resources

CAPACITY: Final = 1000
WINDOW_S: Final = 5
LIMITS: Final = EvictionLimits(cooldown_s=4, max_victims=3, lost_after_s=60, settle_s=WINDOW_S + 1)
RULES: Final = EvictRules(
    ("BEMemoryEvict", "MemoryEvict"), EvictThresholds(70, 60), EvictThresholds(100, 98), 1000, 0
)
NODE: Final = NodeState("n", Resources(1, CAPACITY), Resources(1, CAPACITY))


@dataclass
class ModelPod:
    """A pod and its fate. `ends_s` is when its processes end; None for not yet, far away for never."""

    state: PodState
    marks: EvictionMarks
    use: int
    history: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_S))
    ends_s: float | None = None
    asked_s: float | None = None

    @property
    def is_eligible(self) -> bool:
        is_best_effort = self.state.qos is QosClass.BEST_EFFORT
        is_allowed = self.marks.is_enabled or (is_best_effort and self.marks.is_enabled is None)
        return bool(is_allowed) and not self.marks.obstacle and not self.state.is_ending


@dataclass
class EvictNode:
    """Time goes in seconds; in each the engine has one round. `chance` draws everything."""

    chance: random.Random
    base: int = 100
    now_s: float = 0.0
    pods: dict[str, ModelPod] = field(default_factory=dict)
    node_history: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_S))
    seen: deque[tuple[Evictable, ...]] = field(default_factory=lambda: deque(maxlen=2))
    killed: dict[str, int] = field(default_factory=dict)
    """The use of pods that somebody else has deleted."""
    is_calm: bool = False
    made: int = 0
    engine: EvictionEngine = field(default_factory=lambda: EvictionEngine(LIMITS))

    def arrive(self) -> None:
        self.made += 1
        draw = self.chance
        state = PodState(
            "default",
            f"p{self.made}",
            f"u{self.made}",
            draw.choice(list(QosClass)),
            "Burstable",
            draw.randint(0, 3),
            ZERO,
            ZERO,
        )
        marks = EvictionMarks(
            draw.choice([None, True, True, False]), obstacle=draw.choice(["", "", "static"])
        )
        self.pods[state.uid] = ModelPod(state, marks, draw.randint(20, 200))

    def second(self) -> list[EvictionPick]:
        """One second: whoever ends has ended, metrics are taken, the engine has its round. Who was picked."""
        self.now_s += 1
        for uid in [
            uid for uid, each in self.pods.items() if each.ends_s is not None and self.now_s >= each.ends_s
        ]:
            del self.pods[uid]
        for each in self.pods.values():
            each.history.append(each.use)
        self.node_history.append(self.base + sum(each.use for each in self.pods.values()))
        self.seen.append(tuple(self._evictable(each) for each in self.pods.values()))
        found = self.seen[0] if not self.is_calm else self.seen[-1]
        releasing = {task.name for task in self.engine.tasks if not task.is_calm}
        tasks = memory_tasks(RULES, NODE, found, self.average, releasing)
        self.engine.begin([each.pod for each in found], tasks, self.now_s)
        picks = []
        while (pick := self.engine.pick(self.now_s)) is not None:
            self.check(pick)
            result = self.evict(pick.pod.uid)
            self.engine.ended(pick, result, self.now_s, self.chance.random())
            picks.append(pick)
        assert len(picks) <= LIMITS.max_victims
        return picks

    @property
    def average(self) -> int:
        """The node's use over the window."""
        return sum(self.node_history) // len(self.node_history)

    def _evictable(self, each: ModelPod) -> Evictable:
        return Evictable(each.state, each.marks, sum(each.history) // len(each.history))

    # ------------------------------------------------------------ the API server

    def evict(self, uid: str) -> EvictResult:
        pod = self.pods.get(uid)
        if pod is None:
            return EvictResult.GONE
        mood = (
            "fine"
            if self.is_calm
            else self.chance.choice(["fine", "fine", "slow", "stuck", "lost", "no", "cut", "dark"])
        )
        if mood == "no":
            return EvictResult.REFUSED
        if mood == "dark":
            return EvictResult.FAILED
        pod.asked_s = self.now_s if pod.asked_s is None else pod.asked_s
        if mood != "lost":
            pod.state = replace(pod.state, is_ending=True)
            wait_s = {"fine": 2, "cut": 3, "slow": 40, "stuck": 90}[mood]
            pod.ends_s = self.now_s + wait_s if pod.ends_s is None else pod.ends_s
        return EvictResult.FAILED if mood == "cut" else EvictResult.EVICTED

    def kill(self, uid: str) -> None:
        """Somebody else deletes a pod."""
        pod = self.pods[uid]
        pod.state, pod.asked_s = replace(pod.state, is_ending=True), self.now_s
        pod.ends_s = self.now_s + 1
        self.killed[uid] = pod.use

    # ------------------------------------------------------------ laws

    def check(self, pick: EvictionPick) -> None:
        """A picked pod may go, and is needed: the pods on their way out do not suffice. Deletions by others that the informer does not
        show yet are no fault."""
        pod = self.pods.get(pick.pod.uid)
        if pod is None:
            return  # the informer lags: it is gone, and the API server says so
        assert pod.marks.is_enabled is not False
        assert not pod.marks.obstacle
        going = {
            uid
            for uid, each in self.pods.items()
            if each.asked_s is not None and self.now_s - each.asked_s < LIMITS.lost_after_s
        }
        stays = self.base + sum(each.use for uid, each in self.pods.items() if uid not in going)
        stays += sum(self.killed.get(each.pod.uid, 0) for each in self.seen[0] if not each.pod.is_ending)
        if pick.pod.uid not in going:
            assert stays * 100 > RULES.used.lower_percent * CAPACITY, "a second victim for one pressure"
