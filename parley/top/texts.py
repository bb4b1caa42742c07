"""Numbers and amounts as people read them. Pure."""

from typing import Final

from protocol import texts
from protocol.agent_pages import VmInShort
from protocol.explaining import AmountShown

MAX_CELL: Final = 160
"""Characters of a cell in the table."""
MAX_AMOUNT: Final = 80
MAX_LINE: Final = 500
"""Characters of a line among the details."""


def clean(value: object, limit: int = MAX_CELL) -> str:
    """A text as one line without control sequences, as long as a cell may be; "" for any other value."""
    return texts.clean(value, limit)


def figure(value: float, digits: int = 2) -> str:
    """A number for people; a huge one in short."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def age(seconds: float) -> str:
    """How long ago, in at most four characters for the first hours."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 7200 else f"{whole // 3600}h"


def amount_text(amount: AmountShown | None) -> str:
    """An amount for people, or a dash."""
    return clean(str(amount), MAX_AMOUNT) if amount is not None else "-"


def kind(vm: VmInShort) -> str:
    """Whether the resources of a VM are `tied` or `apart`; "" if the agent does not say."""
    return "" if vm.tied is None else "tied" if vm.tied else "apart"


def goal_reasons(vm: VmInShort) -> tuple[str, ...]:
    """The reasons for the goal: a text for each resource, or one for both; none if the agent does not say."""
    return vm.goal_reasons.texts() if vm.goal_reasons is not None else ()
