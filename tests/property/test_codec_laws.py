"""Laws of the strict reader: whatever it accepts, the lenient reader reads alike; and it accepts all that we write."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import batch, codec, lenient, wire
from protocol.errors import RemoteProtocolError
from tests.property import protocol_strategies as some

brief = settings(deadline=None, max_examples=30)
relaxed = settings(deadline=None, max_examples=100)
thorough = settings(deadline=None, max_examples=500)

# A JSON value as text, an array as its items, or an object as (key with its quotes, value) in order: keys may repeat.
Tree = str | tuple[Any, ...] | list[tuple[str, Any]]


def _tree(content: Any) -> Tree:
    if isinstance(content, dict):
        return [(json.dumps(name), _tree(item)) for name, item in content.items()]
    if isinstance(content, list):
        return tuple(map(_tree, content))
    return json.dumps(content, ensure_ascii=False)


def _text(tree: Tree, gap: str = "") -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, tuple):
        return f"[{gap}{','.join(_text(item, gap) for item in tree)}{gap}]"
    items = (f"{gap}{name}{gap}:{gap}{_text(item, gap)}{gap}" for name, item in tree)
    return f"{{{','.join(items) or gap}}}"


def _words(text: str) -> list[str]:
    return text.split()


_WHOLE = [
    str(edge + step)
    for edge in (0, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64, 2**65, -(2**63), 10**19, 10**38)
    for step in (-1, 0, 1)
]
# The floats lie at the edges of float32: half of the smallest, halves between two, the largest, half beyond it.
_STRANGE_NUMBERS = _words("""
    -0 01 +1 1.0 1e0 1E2 10e-1 0x1 1_0 1. .5 1e - NaN -Infinity 1e999 -0.0 1e-46 1e-999 0e99999 9007199254740993.0
    7.006492321624085e-46 7.006492321624086e-46 16777217 16777219 1.000000059604644775390625
    1.0000000596046447753906250001 3.4028235e38 -3.4028236e38 3.4028235677973366e38
    340282356779733661637539395458142568447 340282356779733661637539395458142568448
""")
_STRANGE_NUMBERS += ["9" * 40, "9" * 310, "9" * 400, "0." + "0" * 40 + "1", "1" + "0" * 38]
numbers = st.one_of(
    st.sampled_from(_WHOLE + _STRANGE_NUMBERS),
    st.integers(-(2**130), 2**130).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
_STRANGE_TEXTS = _words(r"""
    a \u0000 \t \/\b\f \q \u12 ä\u00e4 \ud83d\ude00 \ud800 \udc00 \ud800\ud800 \ude00\ud83d \ud800x \ x"y
""")
_STRANGE_TEXTS += ["", "\x7f", "a\tb", "\ufeff", "e\u0301", "x" * 64, "x" * 65]
_STRANGE_TEXTS += ["😀" * 64, "😀" * 65, r"\ud83d\ude00" * 64]
texts = st.sampled_from([f'"{text}"' for text in _STRANGE_TEXTS]) | some.text.map(json.dumps)
_STRANGE_QUANTITIES = _words(r"""
    1 +1 -1 -0 .5 5. . 0.5m 500u 1n 1e3 1e-3 1E 1E19 1e400 1e401 1k 1K 1Ki 1ki 1mi 0.1Ki 1.5Gi 1_0 0x1 1\n \u0031 ٣
    8Ei 7.9Ei 9223372036854775807 9223372036854775808 9007199254740992 9007199254740992001m
""")
_STRANGE_QUANTITIES += ["", " 1", "1 ", "1" * 513]
quantities = st.one_of(
    st.sampled_from(_STRANGE_QUANTITIES), some.quantity_texts, st.integers(0, 2**64).map(lambda n: f"{n}m")
).map(lambda text: f'"{text}"')


def _id_spellings(text: str) -> list[str]:
    plain, last = text.replace("-", ""), text[:-1]
    bare, wrapped = [text, plain], [f"{{{text}}}", f"{{{plain}}}", f"urn:uuid:{text}", f"urn:uuid:{plain}"]
    blanks = [f" {text}", f"{text} ", f"{text}\\n"]
    cut = [last, f"{text}0", f"{last}g", f"{last}１", f"{last}\\u0661"]
    moved = [text.replace("-", "_"), f"{plain[:28]}----", f"{text[:4]}-{text[4:8]}{text[9:]}"]
    escaped = [f"\\u{ord(text[0]):04x}{text[1:]}", f"{text[:8]}\\u002d{text[9:]}"]
    upper = [spelling.upper() for spelling in (*bare, *wrapped)]
    return [f'"{spelling}"' for spelling in (*bare, *wrapped, *upper, *blanks, *cut, *moved, *escaped)]


ids = some.uuids.flatmap(lambda value: st.sampled_from(_id_spellings(str(value))))
others = st.sampled_from(["", *_words('null true false [] {} [1] {"cpu":"1"} nul undefined /**/1')])
_OWN_KIND = {
    **dict.fromkeys(["agentID", "schedulerInstance"], ids),
    **dict.fromkeys(["cpu", "memory"], quantities),
    **dict.fromkeys(["name", "namespace", "podUID"], texts),
}
_OBJECTS = ("pod", "resources", "metrics", "raw", "lastPermit", "computeUnit")
anything = st.one_of(numbers, texts, quantities, ids, others)


def _replacement(name: str, item: Tree, data: st.DataObject) -> Tree:
    """Another value for the field `name`: of its own kind in most cases."""
    if data.draw(st.integers(0, 4)) == 0 or name in _OBJECTS:
        return data.draw(st.one_of(anything, st.just(item)))
    return data.draw(_OWN_KIND.get(name, numbers))


def _mutate(tree: Tree, data: st.DataObject, name: str = "") -> Tree:
    """`tree` with one thing in it changed."""
    if isinstance(tree, str) or not tree:
        return _replacement(name, tree, data)
    place = data.draw(st.integers(0, len(tree) - 1))
    if isinstance(tree, tuple):
        found = tree[place]
        changed_items = st.sampled_from([[_mutate(found, data)], [], [found, _mutate(found, data)]])
        return (*tree[:place], *data.draw(changed_items), *tree[place + 1 :])
    key, item = tree[place]
    plain = key.strip('"')
    match data.draw(st.sampled_from(["below"] * 6 + ["value", "drop", "add", "repeat", "order", "rename"])):
        case "below":
            changed = [(key, _mutate(item, data, plain))]
        case "value":
            changed = [(key, _replacement(plain, item, data))]
        case "drop":
            changed = []
        case "add":
            changed = [(key, item), (data.draw(texts), data.draw(anything))]
        case "repeat":
            again = (key, _mutate(item, data, plain))
            changed = [again, (key, item)] if data.draw(st.booleans()) else [(key, item), again]
        case "order":
            return data.draw(st.permutations(tree))
        case _:
            escaped = f'"\\u{ord(plain[:1] or "x"):04x}{plain[1:]}"'
            changed = [
                (data.draw(st.sampled_from([key.swapcase(), key.lower(), escaped, f'"{plain} "'])), item)
            ]
    return [*tree[:place], *changed, *tree[place + 1 :]]


def _check(message: Any, body: bytes) -> bool:
    """The laws of any body. Returns whether it was read strictly.

    What the strict reader accepts, the lenient one reads as the same value, types included. Whatever the body is, reading gives a
    value that can be written, or a refusal that names faults and can be answered.
    """
    try:
        strict = codec.strict(message)(body)
    except codec.REFUSALS:
        _check_lenient(message, body)
        return False
    assert lenient.read(message, body) == strict
    assert repr(lenient.read(message, body)) == repr(strict)
    assert codec.decode(message, codec.encode(strict)) == strict
    return True


def _check_lenient(message: Any, body: bytes) -> None:
    value: Any = None
    refusal = None
    try:
        value = codec.decode(message, body)
    except RemoteProtocolError as error:
        refusal = error
    if refusal is None:
        assert codec.decode(message, codec.encode(value)) is not None
        return
    assert refusal.faults
    assert refusal.status == 400
    str(refusal).encode()


def _fits(request: wire.AgentRequest) -> bool:
    return len(codec.encode(request)) <= codec.MAX_REQUEST_BYTES


requests = some.extended_requests.filter(_fits)
either = requests | some.agent_requests
every_kind = pytest.mark.parametrize("kind", some.KINDS)


@thorough
@given(either)
def test_what_an_agent_writes_is_read_strictly(request: wire.AgentRequest) -> None:
    assert _check(wire.AgentRequest, codec.encode_request(request))


@every_kind
@brief
@given(data=st.data())
def test_what_our_own_programs_write_is_read_strictly(kind: str, data: st.DataObject) -> None:
    message, values_of_it = some.KINDS[kind]
    body = codec.encode(data.draw(values_of_it))
    # No informant of ours comes without a way to read metrics.
    assert _check(message, body) or (kind.startswith("Informant") and b"prometheus" not in body)


def _changed(content: Any, data: st.DataObject) -> bytes:
    tree = _tree(content)
    for _ in range(data.draw(st.integers(1, 3))):
        tree = _mutate(tree, data)
    gap = data.draw(st.sampled_from(["", "", " ", "\n\t\r", "\x0c", "\ufeff", "/**/"]))
    tail = data.draw(st.sampled_from(["", "", "", " ", "\n", "x", ",", "\x00", "{}", "null"]))
    return (_text(tree, gap) + tail).encode("utf-8", "surrogatepass")


@thorough
@given(either, st.data())
def test_a_changed_request_is_read_alike_or_not_strictly(
    request: wire.AgentRequest, data: st.DataObject
) -> None:
    _check(wire.AgentRequest, _changed(json.loads(codec.encode(request)), data))


@every_kind
@brief
@given(data=st.data())
def test_any_changed_message_is_read_alike_or_not_strictly(kind: str, data: st.DataObject) -> None:
    message, values_of_it = some.KINDS[kind]
    _check(message, _changed(json.loads(codec.encode(data.draw(values_of_it))), data))


def _with_changed_bytes(body: bytes, data: st.DataObject) -> bytes:
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(body))] * 2)))
        end = data.draw(st.sampled_from([end, start, start + 1, len(body)]))
        noise = st.one_of(
            st.binary(max_size=4), st.text('0123456789.eE+-"\\{}[]:, ', max_size=3).map(str.encode)
        )
        body = body[:start] + data.draw(st.one_of(noise, st.just(body[start:end] * 2))) + body[end:]
    return body


@thorough
@given(either, st.data())
def test_a_request_with_changed_bytes_is_read_alike_or_not_strictly(
    request: wire.AgentRequest, data: st.DataObject
) -> None:
    _check(wire.AgentRequest, _with_changed_bytes(codec.encode(request), data))


@every_kind
@brief
@given(data=st.data())
def test_any_message_with_changed_bytes_is_read_alike_or_not_strictly(kind: str, data: st.DataObject) -> None:
    message, values_of_it = some.KINDS[kind]
    _check(message, _with_changed_bytes(codec.encode(data.draw(values_of_it)), data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
any_json = json_values.map(lambda value: json.dumps(value).encode())


@every_kind
@brief
@given(body=st.binary(max_size=80) | any_json)
def test_any_bytes_are_read_alike_or_not_strictly(kind: str, body: bytes) -> None:
    _check(some.KINDS[kind][0], body)


blanks = st.text(" \t\r\n", max_size=3).map(str.encode)
items = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | some.text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some.text, inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value).encode())


@relaxed
@given(st.lists(st.tuples(blanks, items, blanks), max_size=5), blanks, blanks)
def test_a_batch_is_split_into_the_very_bytes_of_its_items(
    parts: list[tuple[bytes, bytes, bytes]], before: bytes, after: bytes
) -> None:
    body = before + b"[" + b",".join(b"".join(part) for part in parts) + b"]" + after
    assert batch.read_batch(body) == [item for _, item, _ in parts]


@relaxed
@given(st.binary(max_size=60) | st.text('[]{},:" 1ntrue', max_size=30).map(str.encode))
def test_what_is_split_is_an_array_of_that_many_items(body: bytes) -> None:
    found = batch.read_batch(body)
    text = body.decode(errors="replace")
    if found is not None:
        assert len(json.loads(text)) == len(found)
    else:
        assert not text.isascii() or not isinstance(_parsed(text), list)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _: pytest.fail("not drawn"))
    except ValueError:
        return None


@relaxed
@given(st.lists(st.tuples(st.integers(200, 599), items), max_size=5))
def test_the_answer_to_a_batch_holds_every_answer_in_order(answers: list[tuple[int, bytes]]) -> None:
    written = json.loads(batch.write_batch(answers))
    assert written == [{"status": status, "body": json.loads(body)} for status, body in answers]
