"""The parameters of a query, read all at once: their rules are the same table that the OpenAPI document is made from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_NUMBER: Final = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    about: str
    default: int
    least: int
    most: int

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most, "default": self.default}

    def read(self, text: str) -> int | str:
        """The number, or the rule that it breaks."""
        value = int(text) if _NUMBER.fullmatch(text) and text.isascii() else None
        if value is None or not self.least <= value <= self.most:
            return f"must be a whole number from {self.least} to {self.most}"
        return value


@dataclass(frozen=True, slots=True)
class Word:
    """A text of at most `MAX_WORD` characters: one of `choices` if there are any, or begun by one of `beginnings` if there are any.

    The only kind of parameter that may be required: the others have defaults.
    """

    name: str
    about: str
    choices: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()
    is_required: bool = False

    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_WORD}
        if self.beginnings:
            schema["pattern"] = f"^({'|'.join(self.beginnings)})"
        return schema

    def read(self, text: str) -> str | tuple[str]:
        """The text as a tuple of one, or the rule that it breaks."""
        if self.choices:
            return (text,) if text in self.choices else f"must be one of {', '.join(self.choices)}"
        if not 1 <= len(text) <= MAX_WORD:
            return f"must have 1 to {MAX_WORD} characters"
        if self.beginnings and not text.startswith(self.beginnings):
            return "must be what the page before has told as its `continue`"
        return (text,)


MAX_WORD: Final = 1024


@dataclass(frozen=True, slots=True)
class YesNo:
    """`true` or `false`; false if it is not given."""

    name: str
    about: str

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean", "default": False}

    def read(self, text: str) -> bool | str:
        """Which of the two, or the rule that it breaks."""
        return text == "true" if text in {"true", "false"} else "must be true or false"


Parameter: TypeAlias = Whole | Word | YesNo


@dataclass(frozen=True, slots=True)
class Query:
    """The query as it was read: numbers, words if they were given, and yes or no."""

    numbers: Mapping[str, int]
    words: Mapping[str, str]
    answers: Mapping[str, bool]


def read(query: Mapping[str, str], known: tuple[Parameter, ...]) -> Query | tuple[str, ...]:
    """The values of a query, or everything that is wrong with it: each parameter, its text, and the rule that it breaks."""
    names = [each.name for each in known]
    rule = f"known are {', '.join(names)}" if names else "this page takes no parameters"
    faults = [f"{name[:64]}: unknown; {rule}" for name in query if name not in names]
    numbers = {each.name: each.default for each in known if isinstance(each, Whole)}
    words: dict[str, str] = {}
    answers = {each.name: False for each in known if isinstance(each, YesNo)}
    for each in known:
        text = query.get(each.name)
        if text is None:
            if isinstance(each, Word) and each.is_required:
                faults.append(f"{each.name}: is required")
            continue
        value = each.read(text)
        match value:
            case bool():
                answers[each.name] = value
            case int():
                numbers[each.name] = value
            case (word,):
                words[each.name] = word
            case _:
                faults.append(f"{each.name}: {value} (found {text[:64]!r})")
    return tuple(faults) if faults else Query(numbers, words, answers)
