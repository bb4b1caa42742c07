"""Feature gates as a value: which features there are, which are on by default, and which are on.

The words are those of `k8s.io/component-base/featuregate`: a feature has a default and a stage.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

NAME_RULE: Final = (
    "a name begins with a letter and has at most 63 letters, digits, dots, hyphens and underscores"
)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
WORDS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
"""The words that Go's `strconv.ParseBool` takes, which reads the published flag."""


class FeatureStage(enum.StrEnum):
    """How far a feature has come."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = "GA"
    DEPRECATED = "DEPRECATED"


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """The default of a feature, on or off, and its stage."""

    default: bool = False
    stage: FeatureStage = FeatureStage.ALPHA


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The known features, and those that were switched on or off; the others have their default."""

    specs: Mapping[str, FeatureSpec] = field(default_factory=dict)
    values: Mapping[str, bool] = field(default_factory=dict)

    def enabled(self, name: str) -> bool:
        return self.values.get(name, self.specs[name].default)

    def with_values(self, values: Mapping[str, bool]) -> "FeatureGates":
        """Gates with these switches and no others; `faults` of the switches must be empty."""
        assert not self.faults(values), values
        return replace(self, values=dict(values))

    def faults(self, values: Mapping[str, object]) -> list[str]:
        """The faults of switches, one line for each, beginning with the feature's name."""
        found, known = [], ", ".join(sorted(self.specs)) or "none"
        for name, value in values.items():
            if name not in self.specs:
                found.append(f"{name}: there is no such feature gate (there are: {known})")
            elif not isinstance(value, bool):
                found.append(f"{name}: must be true or false (found {str(value)[:60]!r})")
        return found


def is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def parsed(text: str) -> tuple[dict[str, bool], list[str]]:
    """The switches in `Name=true,Other=false`, and the faults of the rest. The features need not exist."""
    found: dict[str, bool] = {}
    faults: list[str] = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, word = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            faults.append(f"{pair[:60]!r}: malformed pair, must be NAME=true or NAME=false")
        elif word not in WORDS:
            faults.append(f"{name[:63]}: must be true or false (found {word[:60]!r})")
        elif found.setdefault(name, WORDS[word]) != WORDS[word]:
            faults.append(f"{name[:63]}: is given as true and as false")
    return found, faults
