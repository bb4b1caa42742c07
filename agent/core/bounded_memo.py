"""The memory of a back end about its VMs, with a bound: a node has few VMs at a time, but their names change for ever."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

V = TypeVar("V")
MAX_VMS: Final = 2048
"""More than a node has at a time. Each of those is looked at every few seconds."""


class BoundedMemo(Generic[V]):
    """A value for each VM, made when it is asked for first. The one that was not asked for the longest goes first."""

    def __init__(self, make: Callable[[], V], most: int = MAX_VMS) -> None:
        self._make = make
        self._most = most
        self._known: dict[str, V] = {}

    def of(self, vm: str) -> V:
        found = self._known.pop(vm) if vm in self._known else self._make()
        self._known[vm] = found
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return found

    def forget(self, vm: str) -> None:
        """Drop the value of a VM, if there is one."""
        self._known.pop(vm, None)
