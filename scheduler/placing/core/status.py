"""What a plugin says: a code, with texts that say why. Sources: seed 001, reference/kubernetes.md 1.4.

`None` is Success wherever a status is expected, so what asks a status for something is a function here: `code_of(None)`.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final


class Code(enum.IntEnum):
    """The outcome of a plugin.

    The numbers of the first four are those of seed 001. Later versions of Kubernetes moved them, so numbers are never written
    anywhere: `str` gives the name, and that is what is written.
    """

    SUCCESS = 0
    """The plugin ran and has nothing against it."""
    ERROR = 1
    """The plugin failed. The pod is tried again after a back-off."""
    UNSCHEDULABLE = 2
    """The plugin says no; that may change."""
    WAIT = 3
    """At the permit point: the pod has to wait."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 4
    """The plugin says no, and preemption would not help."""
    SKIP = 5
    """The plugin has nothing to do here: its filter or score is left out, or the next plugin binds."""
    PENDING = 6
    """The plugin says no until somebody else has acted; the pod is tried again without a back-off."""

    def __str__(self) -> str:
        return _NAMES[self]


_NAMES: Final = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.WAIT: "Wait",
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}
REJECTIONS: Final = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})
"""The codes by which a plugin says no, as opposed to failing."""


class StatusError(Exception):
    """A status as an exception: its text is the status's message."""


@dataclass(frozen=True, slots=True)
class Status:
    """A code and why. `code` may be a number that nobody knows, which counts as an error.

    `texts` are for people; `error` is what the plugin failed with, and comes before them in `reasons`. `plugin` is set by the
    framework: the plugin whose word this is.
    """

    code: Code | int
    texts: tuple[str, ...] = ()
    error: Exception | None = None
    plugin: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.texts if self.error is None else (str(self.error), *self.texts)

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def as_error(self) -> Exception | None:
        """The status as an exception; None for Success, Wait and Skip. Source: seed 001, `AsError`."""
        if self.code in {Code.SUCCESS, Code.WAIT, Code.SKIP}:
            return None
        return self.error if self.error is not None else StatusError(self.message)

    def by(self, plugin: str) -> "Status":
        """The status as the word of `plugin`."""
        return replace(self, plugin=plugin)


def new_status(code: Code | int, *texts: str) -> Status:
    """A status with its texts. Source: seed 001, `NewStatus`."""
    return Status(code, texts)


def error_status(error: Exception | str) -> Status:
    return Status(Code.ERROR, (error,)) if isinstance(error, str) else Status(Code.ERROR, error=error)


def code_of(status: Status | None) -> Code | int:
    """The code; Success for None."""
    return status.code if status is not None else Code.SUCCESS


def is_success(status: Status | None) -> bool:
    return status is None or status.code == Code.SUCCESS


def is_rejected(status: Status | None) -> bool:
    """Whether it says no, as opposed to having failed."""
    return status is not None and status.code in REJECTIONS


def as_error_of(status: Status | None) -> Exception | None:
    """The status as an exception; None for None, and where `Status.as_error` gives none. Source: seed 001, `AsError`."""
    return status.as_error() if status is not None else None


def message_of(status: Status | None) -> str:
    """The reasons in one text; empty for None."""
    return status.message if status is not None else ""
