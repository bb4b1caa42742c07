"""What a run of the demo consists of, wherever its node and its VMs come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parley.burner import Burner
from parley.children import ProgramSpec
from protocol.values import Resources


def nothing(_now_s: float) -> None:
    """Act on nothing: the load comes from elsewhere."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One node, its VMs, and the programs of Parley that the demo runs for them, in the order of their start."""

    directory: Path
    node: str
    reservable: Resources
    """What all VMs of the node may use together."""
    agent_port: int
    programs: tuple[ProgramSpec, ...]
    steps: Mapping[str, Resources]
    """One compute unit of each VM, by NAMESPACE/NAME."""
    burner: Burner | None = None
    """Burdens this machine, where one of the VMs has its load."""
    act: Callable[[float], None] = nothing
    """Called at each look, with the monotonic clock: sets the load of real containers."""

    @property
    def state(self) -> Path:
        """The agent's state directory."""
        return self.directory / "state"
