"""Faults that last: a file that cannot be read for an hour is one line when that begins, and one when it is over."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from hosting.logs import Logger

ALIKE: Final = 10
"""So many objects with the same fault are told one by one."""


class FaultTally:
    """Selects the faults of many objects that are worth telling: those of the first objects, and of the others only how many there are, as
    often as that number has another digit.

    Faults are the same if they have the same text before the first colon: the text after it is peculiar to the object.
    """

    def __init__(self) -> None:
        self._present: dict[str, str] = {}
        self._alike: Counter[str] = Counter()
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._present)

    def begun(self, about: str, error: str) -> int:
        """An object has this fault. Returns how many objects have it now, if that is worth telling; 0 if nothing is: it
        has the fault already, or is one of many."""
        if self._present.get(about) == error:
            return 0
        self.over(about)
        kind = _kind(error)
        self._present[about] = error
        self._alike[kind] += 1
        alike = self._alike[kind]
        if alike > ALIKE and str(alike).rstrip("0") != "1":
            return 0
        self._told.add(about)
        return alike

    def over(self, about: str) -> bool:
        """The object has no fault any more. Returns whether the fault was told."""
        error = self._present.pop(about, None)
        if error is None:
            return False
        kind = _kind(error)
        self._alike[kind] -= 1
        if not self._alike[kind]:
            del self._alike[kind]
        was_told = about in self._told
        self._told.discard(about)
        return was_told

    def forget_all_but(self, abouts: Collection[str]) -> None:
        """Forget the objects that are gone; `abouts` are those that are still there."""
        for about in self._present.keys() - set(abouts):
            self.over(about)


def _kind(error: str) -> str:
    return error.partition(":")[0]


class FaultLog:
    """Logs the faults of one task that is done again and again.

    A fault is logged as a warning with the text `begun` if it is new or another than the last time, and with `over` as
    information when the task works again. `about` keeps the faults of several objects apart; of many objects with the same fault a
    line tells the number (`objects`).
    """

    def __init__(self, log: Logger, begun: str, over: str, *, is_ours: bool = False) -> None:
        """`is_ours` makes a fault an error instead of a warning."""
        self._begun, self._over = begun, over
        self._info, self._warn = log.info, log.error if is_ours else log.warning
        self._tally = FaultTally()

    def failed(self, error: object, about: str = "", **fields: Any) -> None:
        alike = self._tally.begun(about, str(error))
        if alike:
            many = {"objects": alike} if alike > ALIKE else {}
            self._warn(self._begun, error=str(error), **fields, **many)

    def worked(self, about: str = "", **fields: Any) -> None:
        if self._tally.over(about):
            self._info(self._over, **fields)

    def forget_all_but(self, abouts: Collection[str]) -> None:
        """Say nothing more of objects that are gone; `abouts` are those that are still there."""
        self._tally.forget_all_but(abouts)

    @property
    def is_present(self) -> bool:
        return len(self._tally) > 0
