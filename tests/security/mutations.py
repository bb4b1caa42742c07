"""Hostile input made of good examples: bytes that are cut, flipped, spliced and repeated; JSON and YAML whose parts are replaced."""

import json
import random
from collections.abc import Callable
from typing import Any, Final

HUGE_NUMBERS: Final = (
    *("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e-999", "-0", "-0.0", "0.1", "1e400000000"),
    *("9" * 40, "-" + "9" * 40, "9" * 5000, "18446744073709551616", "9223372036854775808", "0x" + "f" * 80),
)
TEXTS: Final = (
    *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\u202e\\u2066"', '"\u00e9\u0301"', '"\u212a\u017f"'),
    *('"\ufeff"', '"\u0664\u0662"', '"\u00b2"', '"../../etc/passwd"', '"a/../b"', '"%2e%2e%2f"', '"\\r\\n"'),
    *(
        '""',
        '"' + "a" * 5000 + '"',
        '"1e999"',
        '"' + "9" * 5000 + '"',
        '"NaN"',
        '"1Ki1"',
        '"0-8191"',
        '"8191-0"',
    ),
    *('"9999-12-31T23:59:59Z"', '"0001-01-01T00:00:00+23:59"', '"2026-02-30"', '"[[[["', '"{\\"a\\":1e999}"'),
)
DEEP: Final = (
    *("[" * 300 + "]" * 300, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, '{"a":' * 50_000),
    *("[" * 960 + "]" * 960, '{"":[' * 480 + "]}" * 480),
)
PLAIN: Final = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "0",
    "-1",
    "1",
    "[null]",
    '{"":null}',
    "[[]]",
    '[{"a":[]}]',
)
YAML: Final = (
    *(
        "&a [*a, *a]",
        "&a {<<: *a}",
        "!!python/object/apply:os.system [id]",
        "!!bool perhaps",
        "!!int ''",
        "? [a]\n: 1",
    ),
    *(
        "!!timestamp x",
        "!!binary '%'",
        "!!set {a}",
        "!!omap [a]",
        "!!float x",
        "2026-02-30",
        "0b",
        "1:99:99",
        "*x",
    ),
    *(
        "---\n1\n---\n2",
        "<<: 1",
        "<<: [1]",
        "{<<: {a: 1}}",
        "%YAML 9.9\n--- 1",
        "\t- a",
        "|9\n a",
        "0x" + "f" * 5000,
    ),
)
"""Values in the notation of their own; YAML beyond JSON."""


def odd(rng: random.Random) -> str:
    """A value that a good peer does not send, as JSON or nearly."""
    return rng.choice(rng.choice((HUGE_NUMBERS, HUGE_NUMBERS, TEXTS, TEXTS, PLAIN, PLAIN, DEEP)))


MOST_BYTES: Final = 250_000
"""No body that is read is longer, but for files and the extender's."""


def mutated(example: bytes, rng: random.Random) -> bytes:
    """`example` after some changes."""
    content = _structured(example, rng) if rng.random() < 0.65 else example
    if rng.random() < 0.5:
        for _ in range(rng.randrange(1, 4)):
            content = rng.choice(_OF_BYTES)(content[:MOST_BYTES], rng)
    return content[:MOST_BYTES]


# ------------------------------------------------------------ bytes


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flip(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]


def _splice(content: bytes, rng: random.Random) -> bytes:
    first, last = rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)
    return content[:first] + content[last:]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    first = rng.randrange(len(content) + 1)
    part = content[first : first + rng.randrange(1, 40)]
    return content[:first] + part * rng.choice((2, 3, 50, 1000)) + content[first:]


def _insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    noise = rng.choice(
        (
            rng.randbytes(rng.randrange(1, 9)),
            odd(rng).encode("utf-8", "surrogatepass"),
            rng.choice(YAML).encode(),
            *(
                b"\xed\xa0\x80",
                b"\xff\xfe",
                b"\xef\xbb\xbf",
                b"\x00",
                b"\xc0\xaf",
                b"\xf4\x90\x80\x80",
                b"\x85",
            ),
        )
    )
    return content[:place] + noise + content[place:]


def _number(content: bytes, rng: random.Random) -> bytes:
    """One run of digits becomes another number."""
    places = [place for place, each in enumerate(content) if 48 <= each <= 57]
    if not places:
        return _insert(content, rng)
    first = last = rng.choice(places)
    while last < len(content) and 48 <= content[last] <= 57:
        last += 1
    return content[:first] + rng.choice(HUGE_NUMBERS).encode() + content[last:]


def _as_utf_16(content: bytes, rng: random.Random) -> bytes:
    return content.decode(errors="replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7")))


_OF_BYTES: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    *(_cut, _flip, _flip, _splice, _repeat, _insert, _insert, _number, _number, _as_utf_16),
)

# ------------------------------------------------------------ JSON


class _Written(str):
    """A part that is JSON text already."""

    __slots__ = ()


def _structured(content: bytes, rng: random.Random) -> bytes:
    """A document with some of its parts replaced, left out, given twice or under another name; as it is if it is no JSON."""
    try:
        found = json.loads(content)
        for _ in range(rng.randrange(1, 4)):
            found = _changed(found, rng)
        return _written(found, rng).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return content


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: each for key, each in value.items() if key != name}
        if rng.random() < 0.05:
            return {(rng.choice(TEXTS)[1:-1] if key == name else key): each for key, each in value.items()}
        return {**value, name: _changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value * rng.choice((0, 2, 300))
        return [_changed(each, rng) if number == place else each for number, each in enumerate(value)]
    if (
        isinstance(value, str)
        and not isinstance(value, _Written)
        and value[:1] in "[{"
        and rng.random() < 0.7
    ):
        inner = _structured(value.encode(), rng)  # such as an annotation, which is JSON in a text
        return inner.decode(errors="replace")
    if isinstance(value, str) and not isinstance(value, _Written) and rng.random() < 0.4:
        return rng.choice(_OF_BYTES)(value.encode(), rng).decode(errors="replace")
    return _Written(odd(rng))


def _written(value: Any, rng: random.Random) -> str:
    match value:
        case _Written():
            return value
        case dict():
            members = [f"{json.dumps(key)}:{_written(each, rng)}" for key, each in value.items()]
            if members and rng.random() < 0.03:
                members.append(rng.choice(members).partition(":")[0] + ":" + odd(rng))
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(_written(each, rng) for each in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=rng.random() < 0.5)
