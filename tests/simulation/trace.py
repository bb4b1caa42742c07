"""A trace of a run, for a person: the last lines, each with its moment and the VM or node that it is about."""

from collections import deque
from collections.abc import Collection

MOST_LINES = 4_000


class Trace:
    """Keeps lines. They are put together only when somebody reads them: most runs break nothing."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=MOST_LINES)

    def add(self, now_s: float, about: str, text: str, *parts: object) -> None:
        """One line: `text` followed by `parts`."""
        self._lines.append((now_s, about, text, parts))

    def told(self, start_s: float, about: Collection[str], most: int) -> list[str]:
        """The last lines about any of `about`, times counted from `start_s`.

        A line that says of its subject what the one before of the same kind said is left out: renewals fill pages.
        """
        found: list[str] = []
        last: dict[tuple[str, str], str] = {}
        for at_s, who, text, parts in self._lines:
            if who not in about:
                continue
            what = " ".join([text, *map(str, parts)])
            kind = (who, text.partition(" ")[0])
            if last.get(kind) != what:
                found.append(f"{at_s - start_s:9.3f} s  {who}: {what}")
                last[kind] = what
        return found[-most:]
