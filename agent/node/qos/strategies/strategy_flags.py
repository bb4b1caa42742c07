"""The flags of a strategy as a table: what they are for, and the range of their values."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.node.qos.ports import FlagSet


@dataclass(frozen=True, slots=True)
class StrategyFlag:
    """A flag. `suffix` follows the strategy's prefix; `least` and `most` bound numbers; a text is one of `choices`, if there are any."""

    suffix: str
    default: bool | float | str
    help_text: str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()


class StrategyFlags:
    """Reads the flags of a strategy; `prefix` begins their names."""

    def __init__(self, prefix: str, flags: tuple[StrategyFlag, ...]) -> None:
        self._prefix, self._flags = prefix, flags
        self._values: FlagSet | None = None

    def add_to(self, flags: FlagSet) -> None:
        self._values = flags
        for each in self._flags:
            flags.add(f"{self._prefix}{each.suffix}", each.default, each.help_text)

    def number(self, suffix: str) -> float:
        return float(self.value(suffix))

    def whole(self, suffix: str) -> int:
        """The value of a flag that is a whole number."""
        return int(self.value(suffix))

    def value(self, suffix: str) -> bool | float | str:
        assert self._values is not None, "init_flags comes first"
        return self._values.get(f"{self._prefix}{suffix}")

    def faults(self) -> Iterator[str]:
        """Everything that is wrong, each with the flag's name, what would be right and what was found."""
        for each in self._flags:
            value = self.value(each.suffix)
            if isinstance(value, str):
                if each.choices and value not in each.choices:
                    yield f"{self._prefix}{each.suffix}: must be one of {', '.join(each.choices)} (found {value[:60]!r})"
            elif not isinstance(each.default, bool) and not each.least <= value <= each.most:
                bounds = f"{each.least:g} to {each.most:g}"
                yield f"{self._prefix}{each.suffix}: must be from {bounds} (found {value:g})"
