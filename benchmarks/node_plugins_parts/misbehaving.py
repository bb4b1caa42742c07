"""QoS strategies that do what none should, and one that does nothing, offered to the agent as another distribution offers its own."""

import threading
from pathlib import Path
from typing import Any, Final

from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal


class _Strategy:
    def init_flags(self, args: Any) -> None:
        """No args."""

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        """Nothing is needed."""

    def stop(self) -> None:
        """Nothing was changed."""


class Waits(_Strategy):
    """Does nothing until its end is asked for: only the collectors are left."""

    def run(self, stop: StopSignal) -> None:
        while not stop.wait(60.0):
            pass


class Raises(_Strategy):
    """Raises as soon as it runs, and each time that it is tried again."""

    def run(self, stop: StopSignal) -> None:  # noqa: ARG002 - as `ExtensionPlugin` has it; misbehaving is the point
        raise RuntimeError("a fault of the strategy")


class Blocks(_Strategy):
    """Waits for ever, and never looks whether its end is asked for."""

    def run(self, stop: StopSignal) -> None:  # noqa: ARG002 - as `ExtensionPlugin` has it; misbehaving is the point
        threading.Event().wait()


class Spins(_Strategy):
    """Computes for ever."""

    def run(self, stop: StopSignal) -> None:  # noqa: ARG002 - as `ExtensionPlugin` has it; misbehaving is the point
        number = 0
        while True:
            number += 1


STRATEGIES: Final = (Waits, Raises, Blocks, Spins)


def distribution(directory: Path) -> Path:
    """The folder of a distribution that offers them, by their names."""
    metadata = directory / "site" / "bench_strategies-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-strategies\nVersion: 1\n")
    lines = [f"{each.__name__} = {__name__}:{each.__name__}" for each in STRATEGIES]
    (metadata / "entry_points.txt").write_text("\n".join(["[parley.qos_plugins]", *lines]) + "\n")
    return metadata.parent
