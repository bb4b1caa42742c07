"""Faults that last: a file that cannot be read for an hour is one line when that begins, and one when it is over."""

from collections.abc import Collection
from typing import Any

from hosting.logs import Logger


class FaultLog:
    """Logs the faults of one task that is done again and again.

    A fault is logged as a warning with the text `begun` where it is new or another than the last time, and with `over` as
    information when the task works again. `about` keeps the faults of several objects apart.
    """

    def __init__(self, log: Logger, begun: str, over: str, *, is_ours: bool = False) -> None:
        """`is_ours` makes a fault an error instead of a warning."""
        self._begun, self._over = begun, over
        self._info, self._warn = log.info, log.error if is_ours else log.warning
        self._present: dict[str, str] = {}

    def failed(self, error: object, about: str = "", **fields: Any) -> None:
        if self._present.get(about) != str(error):
            self._present[about] = str(error)
            self._warn(self._begun, error=str(error), **fields)

    def worked(self, about: str = "", **fields: Any) -> None:
        if self._present.pop(about, None) is not None:
            self._info(self._over, **fields)

    def forget_all_but(self, abouts: Collection[str]) -> None:
        """Say nothing more of objects that are gone; `abouts` are those that are still there."""
        for about in self._present.keys() - set(abouts):
            del self._present[about]

    @property
    def is_present(self) -> bool:
        return bool(self._present)
