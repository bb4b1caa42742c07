"""How stories are told: numbered lines with their times, and whatever breaks is told with the lines so far."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator

from tests.machines.ledger_observer import LawBrokenError


class StoryBrokenError(AssertionError):
    """A law was broken, or something did not come out as the story says. The text has the steps so far."""


class Telling:
    """The lines of one story, like `7. at 31.0 s: 4 s pass`."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._began_s = self._now_s()

    @abstractmethod
    def _now_s(self) -> float:
        """The story's clock."""

    def _tell(self, text: str) -> None:
        at_s = self._now_s() - self._began_s
        self.steps.append(f"{len(self.steps) + 1:>2}. at {at_s:.1f} s: {text}")

    @contextlib.contextmanager
    def _step(self, text: str) -> Iterator[None]:
        self._tell(text)
        try:
            yield
        except LawBrokenError as error:
            raise self._broken(str(error)) from error

    def _then(self, text: str) -> None:
        self.steps[-1] += text

    def _broken(self, what: str) -> StoryBrokenError:
        return StoryBrokenError("\n".join((what, *self.steps)))

    def _expect(self, text: str, found: object, wanted: object) -> None:
        """The story breaks if `found` is not what is `wanted`."""
        self._tell(f"{text} {wanted}")
        if found != wanted:
            raise self._broken(f"expected {wanted}, found {found}")
