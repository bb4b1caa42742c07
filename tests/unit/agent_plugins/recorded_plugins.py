"""The recordings of the published plugin manager: `golden/pluginmanager-v1.35.md` in their folder says what they mean."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

GOLDEN: Final = Path(__file__).resolve().parents[4] / "shared" / "golden" / "pluginmanager-v1.35.jsonl"

Case: TypeAlias = dict[str, Any]


def recorded(kinds: Collection[str]) -> dict[str, Case]:
    """The cases of these kinds by ID. Skips the module that asks where the recordings are missing."""
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not there: no case of it is run", allow_module_level=True)
    with GOLDEN.open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return {case["id"]: case for case in cases if case["kind"] in kinds}


class LabelledHandler:
    """A handler of which nothing is asked but its label."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __str__(self) -> str:
        return self.label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelledHandler) and other.label == self.label

    def __hash__(self) -> int:
        return hash(self.label)

    async def validate_plugin(self, plugin_name: str, endpoint: str, versions: Any) -> None:
        raise NotImplementedError

    async def register_plugin(
        self, plugin_name: str, endpoint: str, versions: Any, plugin_client_timeout_s: float | None = None
    ) -> None:
        raise NotImplementedError

    async def deregister_plugin(self, plugin_name: str, endpoint: str) -> None:
        raise NotImplementedError
