"""Plain files are read right from the parser's events, with the same outcome as by PyYAML's graph of nodes."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hosting import yaml_reader

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["yes", "1:30", "010", "0x1f", "<<", "=", "~", "2001-12-14", "1e3", "- a", "*b", "a: b"]),
)
DATA = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=6), below, max_size=4),
    max_leaves=20,
)
UNUSUAL = [
    "a: &x [1, 2]\nb: *x\n",
    "a: {<<: {b: 1}, c: 2}\n",
    "a: !!str 2\n",
    "a: 1\na: 2\n",
    "a: 1\nb: {c: 1, c: 1}\n",
    "? [a]\n: 1\n",
    "a: 1\n---\nb: 2\n",
    "a: [1, 2\n",
    "a: !!bool perhaps\n",
    "a: =\n",
    "[" * 101 + "]" * 101,
]
PLAIN = [
    "",
    "# only a remark\n",
    "~\n",
    "2\n",
    "a: 1\nb: [x, 'y', \"z\", 2.5, 0x1f, 010, yes, ~]\nc: {d: {e: |\n  two\n  lines\n}}\n",
    "- {name: a, size: {cpu: '2', memory: 4Gi}}\n- {name: b, size: {cpu: '2', memory: 4Gi}}\n",
    "1: a\ntrue: b\n2001-12-14: c\n",
    "[" * 100 + "]" * 100,
]


def by_graph(content: bytes) -> Any:
    """The outcome without the short way: data and duplicates, or the text of the fault."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_reader, "_straight", _refuse)
        return outcome(content)


def _refuse(_: object) -> Any:
    raise ValueError


def outcome(content: bytes) -> Any:
    try:
        return repr(yaml_reader.read(content))
    except yaml_reader.NotYamlError as error:
        return str(error)


@pytest.mark.parametrize("text", [*UNUSUAL, *PLAIN])
def test_both_ways_read_the_same(text: str) -> None:
    assert outcome(text.encode()) == by_graph(text.encode())


@pytest.mark.parametrize("text", UNUSUAL)
def test_what_is_unusual_is_left_to_the_graph(text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - of the parser, too
        yaml_reader._straight(yaml_reader._Loader(text.encode()))


@given(DATA, st.sampled_from([True, False, None]))
def test_both_ways_read_what_is_written(data: object, is_flow: bool | None) -> None:
    content = yaml.safe_dump(data, default_flow_style=is_flow, allow_unicode=True).encode()
    assert outcome(content) == by_graph(content)


@given(st.text(alphabet="ab:-[]{},#&*!|>'\"%@ \n0123", max_size=40))
def test_both_ways_read_any_text(text: str) -> None:
    assert outcome(text.encode()) == by_graph(text.encode())
