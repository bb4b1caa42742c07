"""A pair of values, one for each resource, for cases in which an amount alone does not tell."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol.values import Resources

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PerResource(Generic[T]):
    """Two values of one kind: for CPU (amounts in milli-CPU) and for memory (amounts in bytes)."""

    cpu: T
    memory: T

    def __iter__(self) -> Iterator[T]:
        yield self.cpu
        yield self.memory


def amounts(of: Resources) -> tuple[int, int]:
    """CPU and memory of `of`; `Resources(*pair)` is the way back."""
    return of.vcpu_milli, of.memory_bytes


@dataclass(frozen=True, slots=True)
class Denial:
    """`amount` of one resource was refused; the peer that refused is not asked for it again before `until_s`."""

    amount: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Reasons:
    """The reason for the wanted amount of each resource."""

    cpu: str
    memory: str

    @classmethod
    def same(cls, text: str) -> "Reasons":
        return cls(text, text)

    def __str__(self) -> str:
        return self.cpu if self.cpu == self.memory else f"CPU: {self.cpu}; memory: {self.memory}"
