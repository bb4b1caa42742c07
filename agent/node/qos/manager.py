"""The QoS manager: which strategies run, and everything that belongs to them. Source: seed 002, `QOSManager`."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.node.qos.client import NodePorts
from agent.node.qos.flags import QOSExtensionConfig
from agent.node.qos.ports import MetricCache
from agent.node.qos.states_informer import States
from hosting.logs import Logger


@dataclass(frozen=True, slots=True)
class StrategyStatus:
    """One strategy, whether it is enabled or not. `state` is `off`, `starting`, `running`, `backing-off`, `stopping`, `stopped` or
    `stuck`, since `since_s` (of the manager's clock)."""

    name: str
    stage: str
    is_enabled: bool
    recommends_only: bool
    state: str
    since_s: float
    restarts: int
    last_error: str
    counts: Mapping[tuple[str, str], int]
    """By action (`write`, `evict`, `event`, `decision`) and result."""
    decisions: tuple[object, ...]
    """The last 16, the newest last."""


class QosManager:
    """Runs each enabled strategy in a thread of its own. `run` is one child of the daemon's supervisor."""

    def __init__(
        self,
        config: QOSExtensionConfig,
        metric_cache: MetricCache,
        states: States,
        ports: NodePorts,
        log: Logger,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config` comes from `flags.configured`. Of `ports`, any may be missing."""
        raise NotImplementedError

    async def run(self) -> None:
        """Wait for the states, start the enabled strategies, and end them when cancelled: 10 s at most.

        Raises `StatesNotSyncedError` where the states are not synced within 60 s.
        """

    def set_feature_gates(self, values: Mapping[str, bool]) -> None:
        """Switch strategies on and off: these switches and no others; features that are not named have their default.

        Raises `FaultsError` with every fault, and then changes nothing. Called in the loop's thread.
        """

    def statuses(self) -> tuple[StrategyStatus, ...]:
        """Every strategy. Called in the loop's thread."""
        return ()
