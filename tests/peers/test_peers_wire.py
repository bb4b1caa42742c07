"""The peers' encoders and arithmetic against the wire vectors recorded from the published package."""

import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.peers.gojson import (
    METRICS,
    NAMED,
    BadJSONError,
    Message,
    decode,
    encode,
    float32,
    quantity,
    whole_quantity,
)
from tests.peers.resources import (
    Resources,
    Wish,
    latest_shared,
    published_target,
    range_text,
    read_metrics,
    version_text,
)

GOLDEN = Path(os.environ.get("PARLEY_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
VECTORS = "neon-api-v0.1.13.jsonl"


@functools.cache
def _all() -> tuple[Message, ...]:
    found = GOLDEN / VECTORS
    if not found.is_file():
        return ()
    return tuple(json.loads(line) for line in found.read_text().splitlines())


def vectors(op: str) -> list[Message]:
    """The vectors of one kind; the test is skipped where the folder is not."""
    found = [vector for vector in _all() if vector["op"] == op]
    if not found:
        pytest.skip(f"no wire vectors in {GOLDEN} (PARLEY_GOLDEN names another folder)")
    return found


def _encoded_or_none(vector: Message) -> str | None:
    kind = NAMED[vector["type"]]
    try:
        return encode(kind, decode(kind, vector["input"].encode())).decode()
    except BadJSONError:
        return None


def _with_values(text: str) -> Any:
    """A message with its quantities as numbers: Go keeps some of their texts, and makes others canonical."""
    message = json.loads(text)
    data = message.get("data", {})
    for name, amount in data.items():
        if isinstance(amount, str) and name in ("cpu", "memory"):
            data[name] = quantity(amount)
    return message


def test_every_encoded_message_is_read_and_written_again_byte_for_byte() -> None:
    """Section 1.3: the wire shapes."""
    wrong = [
        vector["json"]
        for vector in vectors("encode")
        if vector["type"] in NAMED
        and encode(kind := NAMED[vector["type"]], decode(kind, vector["json"].encode())).decode()
        != vector["json"]
    ]
    assert wrong == []


def test_what_a_published_handler_accepts_and_refuses() -> None:
    """Section 1.3: Go's leniency in reading, and its limits."""
    wrong = []
    for vector in vectors("decode"):
        found = _encoded_or_none(vector)
        wanted = vector["json"] if vector["ok"] else None
        if found is not None and wanted is not None and "RawResources" in vector["type"]:
            found, wanted = _with_values(found), _with_values(wanted)
        if found != wanted:
            wrong.append(vector)
    assert wrong == []


def test_quantities_have_the_recorded_values() -> None:
    """Section 1.3: `Value()` rounds up."""
    for vector in vectors("quantity"):
        text = vector["input"]
        if not vector["ok"]:
            with pytest.raises(BadJSONError):
                quantity(text)
            continue
        assert quantity(vector["canonical"]) == quantity(text)
        assert quantity(vector["written"]) == quantity(text)
        if "value" in vector:
            assert str(whole_quantity(text)) == vector["value"]


def test_resources_compare_and_convert_as_recorded() -> None:
    """Section 1.3: `uint16` amounts, and the quantities that an agent makes of them."""
    for vector in vectors("resources"):
        ours, theirs = Resources.read(vector["a"]), Resources.read(vector["b"])
        assert ours.lower(theirs).message() == vector["min"]
        assert ours.upper(theirs).message() == vector["max"]
        assert ours.times(vector["factor"]).message() == vector["mul"]
        assert ours.any_greater(theirs) is vector["greater"]
        assert ours.any_less(theirs) is vector["less"]
        assert ours.raw(vector["slotSize"]) == vector["raw"]


def test_versions_are_chosen_and_printed_as_recorded() -> None:
    """Section 5: the highest version in both ranges, none if they are disjoint or inverted."""
    for vector in vectors("latestShared"):
        ours, theirs = tuple(vector["ours"]), tuple(vector["theirs"])
        assert latest_shared(ours, theirs) == (vector["version"] if vector["ok"] else None)
        assert range_text(ours) == vector["text"]
    for vector in vectors("version"):
        assert version_text(vector["number"]) == vector["plugin"]["text"] == vector["informant"]["text"]


def test_metrics_are_read_as_recorded() -> None:
    """Section 3.6: the first line with that beginning, its second field."""
    for vector in vectors("readMetrics"):
        if not vector["ok"]:
            with pytest.raises(BadJSONError):
                read_metrics(vector["page"], vector["prefix"])
            continue
        for name, value in read_metrics(vector["page"], vector["prefix"]).items():
            wanted = float32(float(vector["metrics"][name]))
            assert value == wanted or (math.isnan(value) and math.isnan(wanted))


def test_a_number_that_is_none_cannot_be_encoded() -> None:
    """Section 1.3: NaN and infinities fail before the request is sent."""
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(BadJSONError):
            encode(METRICS, {"loadAvg1M": number, "loadAvg5M": 0.0})


@pytest.mark.parametrize(
    ("use", "unit", "high", "load", "wish", "wanted"),
    [
        ((2, 2), (1, 1), (8, 8), 1.9, Wish(), (4, 4)),
        ((2, 2), (1, 1), (8, 8), 1.8, Wish(), (2, 2)),
        ((2, 2), (1, 1), (8, 8), 0.8, Wish(), (2, 2)),
        ((2, 2), (1, 1), (8, 8), 0.79, Wish(), (1, 1)),
        ((4, 4), (1, 1), (4, 4), 4.0, Wish(), (4, 4)),
        ((3, 5), (1, 1), (8, 8), 2.0, Wish(), (4, 4)),
        ((2, 8), (1, 4), (4, 16), 0.1, Wish(memory=True), (3, 12)),
        ((4, 4), (1, 1), (4, 4), 0.1, Wish(memory=True), (4, 4)),
    ],
)
def test_the_goal_of_a_published_agent(
    use: tuple[int, int],
    unit: tuple[int, int],
    high: tuple[int, int],
    load: float,
    wish: Wish,
    wanted: tuple[int, int],
) -> None:
    """Section 3.4: the table of examples."""
    bounds = Resources(*unit), Resources(*high)
    assert published_target(Resources(*use), Resources(*unit), bounds, load, wish) == wanted


def test_the_goal_without_decreases() -> None:
    """Section 3.4: 3/5 at load 2.0 becomes 5/5 when nothing may shrink."""
    bounds, unit = (Resources(1, 1), Resources(8, 8)), Resources(1, 1)
    assert published_target(Resources(3, 5), unit, bounds, 2.0, may_decrease=False) == (5, 5)
