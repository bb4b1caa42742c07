"""Settings files: every fault at once, each with path, value and rule; nothing that a file holds ends in a crash."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field

from hosting import amounts, options, settings
from hosting.amounts import Cpu, Memory, Resources
from hosting.settings import Settings, SettingsError
from protocol import values

FILE = Path("settings.yaml")


class Part(Settings):
    name: Annotated[str, Field(min_length=1)]
    max_size: Resources | None = None


class Span(Settings):
    least: Annotated[int, Field(ge=1)]
    at_most: int = 9
    note: str | None = None

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if "least" in found and "at_most" in found and found["least"] > found["at_most"]:
            yield "least", f"must not be above atMost: {found['least']} is above {found['at_most']}"
        if "note" in found and found["note"] is None:
            yield "", "needs a note"


class Spans(Settings):
    first: Span | None = None
    more: list[Span] = Field(default_factory=list)
    share: Annotated[int, amounts.share(0.01, 1)] = 0
    name: settings.Name = "a"


class Whole(Settings):
    cpu: Annotated[int, Cpu] = 0
    memory: Annotated[int, Memory] = 0
    parts: list[Part] = Field(default_factory=list)
    one: Part | None = None

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        return ["parts: crossed"] if isinstance(data, dict) and data.get("cpu") == 13 else []


def read(text: str) -> Whole:
    return settings.parse(FILE, text.encode(), Whole)


def faults(content: str | bytes) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.parse(FILE, content.encode() if isinstance(content, str) else content, Whole)
    return caught.value.faults


def test_a_good_file_is_read_with_camel_case_keys_and_quantities() -> None:
    text = "cpu: 1.5\nmemory: 4Gi\nparts:\n- name: a\n  maxSize: {cpu: 250m, memory: 512Mi}\n"
    got = read(text)
    assert (got.cpu, got.memory) == (1500, 4 * 2**30)
    assert [(part.name, part.max_size) for part in got.parts] == [("a", values.Resources(250, 512 * 2**20))]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_all_defaults(text: str) -> None:
    assert read(text) == Whole()


def test_every_fault_is_told_at_once_with_path_and_value() -> None:
    text = """
cpu: lots
memory: -1
parts:
- name: ""
- nme: b
- name: 5
  maxSize: {cpu: 1}
one: none
more: 1
"""
    assert faults(text) == [
        next(fault for fault in faults(text) if fault.startswith("cpu: ")),
        "memory: must be memory in whole bytes, 0 or more, such as 4Gi or 512Mi (found -1)",
        "parts[0].name: must not be empty (found '')",
        "parts[1].name: is required",
        "parts[1].nme: there is no such setting",
        "parts[2].name: must be a text (found 5); put it in quotes",
        "parts[2].maxSize.memory: is required",
        "one: must be a mapping (found 'none')",
        "more: there is no such setting",
    ]


def test_a_text_that_is_no_quantity_is_told_once_with_what_was_meant() -> None:
    (fault,) = faults("cpu: 1\nmemory: 16GB\n")
    assert str(SettingsError(FILE, [fault])) == f"settings.yaml: 1 fault\n  {fault}"
    assert str(SettingsError(FILE, ["a", "b"])) == "settings.yaml: 2 faults\n  a\n  b"
    assert fault.startswith("memory: '16GB' is not a quantity")
    assert fault.endswith("did you mean 16G or 16Gi?")
    assert fault.count("16GB") == 1


def test_duplicate_keys_are_named_with_both_lines_beside_the_other_faults() -> None:
    found = faults("cpu: 1\nmemory: 1\ncpu: 2\nparts:\n- name: a\n  name: b\nmore: 1\n")
    assert found == [
        "line 3: the key 'cpu' was given on line 1 already; each key may come once",
        "line 6: the key 'name' was given on line 5 already; each key may come once",
        "more: there is no such setting",
    ]


def test_faults_between_parts_are_told_whatever_else_is_wrong() -> None:
    assert faults("cpu: 13") == ["parts: crossed"]
    assert faults("cpu: 13\nmore: 1") == ["more: there is no such setting", "parts: crossed"]


@pytest.mark.parametrize(
    ("text", "milli"), [("0", 0), ("2", 2000), ("1.5", 1500), ("250m", 250), ("'2'", 2000), ("1e1", 10_000)]
)
def test_cpus_are_quantities_in_whole_milli_cpu(text: str, milli: int, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"cpu: {text}")
    assert settings.load(path, Whole).cpu == milli


NO_CPU = ["-1", "0.5m", "1Zi", "true", "null", "[1]", "{a: 1}", ".inf", ".nan", "''", "1e400", "9e99"]
ODD_SCALARS = [
    "!!bool perhaps", "!!int ''", "!!float ''", "!!int abc", "!!timestamp soon", "2001-02-30",
    "0001-01-01 00:00:00+14:00", "!!binary '*'", "!!python/object:os.system {}", "!!set [a]", "!!omap {a: b}",
    "0x" + "f" * 5000, "9" * 5000,
]  # fmt: skip
ONE_FAULT: dict[str, list[str | bytes]] = {
    "line 1: not valid YAML: ": ["cpu: [1", "a: !x 1"],
    "line 2: not valid YAML: ": ["a: b\n  c: d", "cpu: 1\nparts: *nowhere"],
    "not valid YAML": [
        b"\xff\xfe\xff",
        b"cpu: \x00",
        b"\x80",
        b"a: 1\n---\nb: 2\n",
        b"[" * 20_000,
        b"a: \xc3(",
    ],
    "(file): must be a mapping (found ": ["[]", "5", "text", "- a", "2001-01-01"],
    "cpu: ": [f"cpu: {text}" for text in NO_CPU],
    "memory: ": [f"memory: {text}" for text in ("-1", "1500m", "lots", "true", "null")],
    "parts: ": ["parts: " + "x" * 5000],
    "": [
        *("5: 1", "null: 1", "true: 1", "1.5: 1", "? [a]\n: 1", "? {a: b}\n: 1"),  # keys that are no texts
        *(f"cpu: {scalar}" for scalar in ODD_SCALARS),
        *("parts: &a [*a]", "one: &a {name: *a}", "one: &a\n  <<: *a\n"),
    ],
}


@pytest.mark.parametrize(
    ("begin", "content"),
    [(begin, content) for begin, contents in ONE_FAULT.items() for content in contents],
    ids=lambda each: repr(each[:20]),
)
def test_what_is_wrong_in_one_place_is_one_short_fault(begin: str, content: str | bytes) -> None:
    (fault,) = faults(content)
    assert begin in fault if begin == "not valid YAML" else fault.startswith(begin)
    assert len(fault) < 400


TAGS = [
    "",
    *(f"!!{tag} " for tag in ["bool", "int", "float", "timestamp", "binary", "null", "set", "omap", "map"]),
]


@given(st.sampled_from(TAGS), st.text("abc019.:-+_xeTZ []{}'\"&*!|>#%@\n", max_size=12))
@example("", "&a [*a]")
def test_no_content_ends_in_anything_but_settings_or_their_faults(tag: str, text: str) -> None:
    try:
        told = [f"{read(f'cpu: {tag}{text}').cpu} milli-CPU"]
    except SettingsError as error:
        told = error.faults
    assert told != []


# ---------------------------------------------------------------- rules between fields


def span_faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.parse(FILE, text.encode(), Spans)
    return caught.value.faults


def test_rules_between_fields_are_told_beside_the_faults_of_fields_at_every_depth() -> None:
    text = """
colour: red
first: {least: 5, atMost: 3, note: 1}
more:
- {least: 10}
- {least: 0, colour: red}
- {least: 5, atMost: 4, note: fine, colour: red}
- {atMost: 1}
- none
"""
    assert span_faults(text) == [
        "first.note: must be a text (found 1); put it in quotes",
        "first.least: must not be above atMost: 5 is above 3",
        "more[0].least: must not be above atMost: 10 is above 9",
        "more[0]: needs a note",
        "more[1].least: must be at least 1 (found 0)",
        "more[1].colour: there is no such setting",
        "more[1]: needs a note",
        "more[2].colour: there is no such setting",
        "more[2].least: must not be above atMost: 5 is above 4",
        "more[3].least: is required",
        "more[3]: needs a note",
        "more[4]: must be a mapping (found 'none')",
        "colour: there is no such setting",
    ]


# ---------------------------------------------------------------- what is not what it looks like


@pytest.mark.parametrize("text", ["1:30", "190:20:30", "-1:30", "1:30.5", "010", "-07"])
def test_numbers_that_only_old_yaml_knows_are_texts(text: str) -> None:
    """1:30 would be 90, and 010 would be 8."""
    assert faults(f"parts: [{{name: {text}, maxSize: {text}}}]") == [
        f"parts[0].maxSize: must be a mapping (found '{text}')"
    ]


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("10", 10), ("+5", 5), ("1_000", 1000), ("0x10", 16), ("0b11", 3)]
)
def test_whole_numbers_are_numbers(text: str, number: int) -> None:
    found = span_faults(f"first: {{least: {10_000 + number}, atMost: {text}, note: x}}")
    assert found == [f"first.least: must not be above atMost: {10_000 + number} is above {number}"]


@pytest.mark.parametrize(
    "text", ["75", "0", "-0.5", "1.5", "0.0000001", "true", "'0.5'", ".inf", ".nan", "9" * 400]
)
def test_a_share_is_judged_in_the_unit_that_it_is_written_in(text: str) -> None:
    (fault,) = span_faults(f"share: {text}")
    assert fault.startswith(
        "share: must be a number from 0.01 to 1 with at most six decimals, such as 0.75 (found "
    )
    assert settings.parse(FILE, b"share: 0.29", Spans).share == 290_000


@pytest.mark.parametrize("text", ['""', '"a\\nb"', '"a\\u0007"', '"a\\u200b"', "a b", "d/a", "x" * 254])
def test_a_name_that_nobody_could_type_is_refused(text: str) -> None:
    (fault,) = span_faults(f"name: {text}")
    assert fault.startswith(
        "name: must be a name of 1 to 253 printable characters without blanks and /, such as db-0"
    )


# ---------------------------------------------------------------- aliases

LAUGHS = "l0: &l0 [a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
BOMBS = {
    "as a wrong text": f"{LAUGHS}one: {{name: *l11}}\n",
    "as a wrong mapping": f"{LAUGHS}one: *l11\n",
    "as an unknown key": LAUGHS,
    "as a quantity": f"{LAUGHS}cpu: *l11\n",
    "as merged mappings": MERGES,
}
READ_THEM = """
import sys
from pathlib import Path
from hosting.settings import SettingsError, load
from tests.unit.hosting.test_settings import BOMBS, Whole
for text in BOMBS.values():
    Path(sys.argv[1]).write_text(text)
    try:
        load(Path(sys.argv[1]), Whole)
    except SettingsError as error:
        print(len(error.faults), len(str(error)))
"""


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))


def test_aliases_that_unfold_without_end_are_faults_and_cost_little(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ_THEM, str(tmp_path / "bomb.yaml")]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_bounded, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == len(BOMBS)
    assert all(faults >= 1 and characters < 100_000 for faults, characters in found)


def test_an_anchor_may_be_used_again_and_a_merged_key_given_again() -> None:
    text = (
        "parts:\n- &a {name: a, maxSize: &s {cpu: 1, memory: 1Gi}}\n- *a\n- {name: b, maxSize: *s}\n"
        "- {<<: *a, name: c}\n"
    )
    assert [part.name for part in read(text).parts] == ["a", "a", "b", "c"]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["missing", "directory", "forbidden"])
def test_a_file_that_cannot_be_read_is_a_fault(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "forbidden":
        path.write_text("cpu: 2")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read every file: run as another than root to see this")
    with pytest.raises(SettingsError, match="cannot be read: ") as caught:
        settings.load(path, Whole)
    assert caught.value.path == path


def test_a_file_beyond_the_limit_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    text = b"cpu: 2\n#"
    path.write_bytes(text + b"x" * (settings.MAX_FILE_BYTES - len(text)))
    assert settings.load(path, Whole).cpu == 2000
    path.write_bytes(text + b"x" * (settings.MAX_FILE_BYTES - len(text) + 1))
    with pytest.raises(SettingsError, match="is larger than 4194304 bytes"):
        settings.load(path, Whole)


@pytest.mark.parametrize("text", ["nan", "NaN", "inf"])
def test_no_number_of_the_command_line_is_nan_or_infinite(text: str) -> None:
    """Click's own range lets NaN through."""
    with pytest.raises(click.BadParameter):
        options.FiniteRange(min=0).convert(text, None, None)
    assert options.FiniteRange(min=0).convert("2.5", None, None) == 2.5


class Sized(Settings):
    size: Resources


def test_equal_amounts_are_read_once_and_what_is_written_alike_only() -> None:
    read = [settings.check({"size": {"cpu": "2", "memory": "4Gi"}}, Sized).size for _ in range(2)]
    assert read[0] is read[1]
    settings.check({"size": {"cpu": 1, "memory": 1}}, Sized)
    for wrong in ({"cpu": True, "memory": 1}, {"cpu": [1], "memory": 1}, {"cpu": 1}, {"cpu": 1, "more": 1}):
        with pytest.raises(settings.FaultsError, match="size"):
            settings.check({"size": wrong}, Sized)


def test_raw_lists_are_let_go_of_and_those_that_the_settings_hold_are_not(tmp_path: Path) -> None:
    class Held(Settings):
        plain: list[int]
        anything: Any

    read = settings.parse(tmp_path / "s.yaml", b"plain: [1, 2]\nanything: [{a: 1}, 2]\n", Held)
    assert (read.plain, read.anything) == ([1, 2], [{"a": 1}, 2])
