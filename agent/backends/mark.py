"""The mark on an object: it says which life of an agent may resize the object.

The mark is an annotation, `GENERATION.COUNT`. A fence writes the next generation, which makes void all commands of an earlier life; the
count makes void, or numbers, the commands of one life.
"""

from dataclasses import dataclass, replace

from agent.core.ports import FencedOffError, Fencing
from hosting.kubernetes import objects
from hosting.kubernetes.names import FENCE
from hosting.kubernetes.resources import Manifest

MAX_DIGITS = 30


@dataclass(frozen=True, slots=True)
class Mark:
    """The generation of the life that commands, and the count of that life."""

    generation: int
    count: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> "Mark | None":
        """The mark of an object; None if it has none, or another text."""
        generation, _, count = objects.annotations(manifest).get(FENCE, "").partition(".")
        if not (generation.isdecimal() and count.isdecimal() and len(generation) + len(count) < MAX_DIGITS):
            return None
        return cls(int(generation), int(count))

    @classmethod
    def after(cls, before: "Mark | None", unix_s: float) -> "Mark":
        """The mark of a new life. Generations are not below the time of day in seconds, so that they go on rising if somebody removes the
        mark."""
        return cls(max(before.generation + 1 if before is not None else 1, int(unix_s)))

    @classmethod
    def owned(cls, manifest: Manifest, fencing: Fencing) -> "Mark":
        """The mark of an object that this life may command. Raises `FencedOffError`."""
        mark = cls.of(manifest)
        if mark is None:
            raise FencedOffError(f"the mark of generation {fencing.generation} was removed")
        fencing.check(mark.generation)
        return mark

    def next(self) -> "Mark":
        return replace(self, count=self.count + 1)

    def patch(self, version: str) -> Manifest:
        """The merge patch that marks an object, if it still has that resourceVersion."""
        return {"metadata": {"resourceVersion": version, "annotations": {FENCE: str(self)}}}

    def __str__(self) -> str:
        return f"{self.generation}.{self.count}"
