"""The queries of the board and of the alert rules, and the names of metrics and labels in them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

MONITORING: Final = Path(__file__).parents[2] / "deploy/monitoring"
VARIABLES: Final = {"$__rate_interval": "1m", "$node": ".*"}
"""Grafana puts these values in the place of the variables of the board."""

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC: Final = r"(?:up|ALERTS|parley_\w+|\w+:parley_\w+:\w+)"
_SELECTOR: Final = re.compile(rf"(?<![\w:]){_METRIC}(?![\w:])(?:\{{[^}}]*\}})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING: Final = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")
_IN_TEXT: Final = re.compile(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}")


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of PromQL, whose it is, and the texts that show labels of what it gives."""

    owner: str
    expression: str
    texts: tuple[str, ...]

    def selectors(self) -> list[str]:
        """The selectors of series, each with its matchers."""
        return _SELECTOR.findall(self.expression)

    def grouping_labels(self) -> set[str]:
        """The labels that the expression groups or matches by, and those that its texts show."""
        bare = _STRING.sub('""', self.expression)
        grouped = (each.strip() for names in _GROUPING.findall(bare) for each in names.split(","))
        shown = (name for text in self.texts for name in _IN_TEXT.findall(text))
        return {name for name in (*grouped, *shown) if name}


def metric_of(selector: str) -> str:
    return selector.partition("{")[0]


def matched_labels(selector: str) -> set[str]:
    return set(_MATCHER.findall(selector))


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
    return found


@cache
def rules(kind: str) -> dict[str, dict[str, Any]]:
    """The rules of that kind, `alert` or `record`, by name."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"] if kind in rule]
    assert len({rule[kind] for rule in found}) == len(found), "a name occurs twice"
    return {rule[kind]: rule for rule in found}


def board_queries() -> Iterator[Query]:
    """Every query of the board, with its variables as Grafana puts them in."""
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield Query(f"{panel['title']} {target['refId']}", expression, (target["legendFormat"],))


def rule_queries() -> Iterator[Query]:
    for name, rule in {**rules("record"), **rules("alert")}.items():
        yield Query(name, rule["expr"], tuple(rule.get("annotations", {}).values()))
