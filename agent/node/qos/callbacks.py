"""Callbacks of the states informer, each in a thread of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.states import ObjectType
from hosting.logs import Logger

MAX_CALLBACKS: Final = 64
SLOW_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class CallbackStatus:
    """One callback. `running_s` is how long the call that runs has been running, 0 where none does."""

    object_type: ObjectType
    name: str
    description: str
    owner: str
    calls_total: int
    errors_total: int
    last_error: str
    running_s: float


class Callbacks:
    """Callbacks by object type and name. Any thread may call every method."""

    def __init__(self, log: Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock

    def register(
        self,
        object_type: ObjectType,
        name: str,
        description: str,
        callback: Callable[[ObjectType], None],
        owner: str = "",
    ) -> None:
        """Call `callback` once the states are synced, and after each change of objects of the type. Raises `ValueError`."""
        raise NotImplementedError

    def send(self, object_type: ObjectType) -> None:
        """Have the callbacks of the type called. Never blocks."""

    def statuses(self) -> tuple[CallbackStatus, ...]:
        """Every callback."""
        return ()
