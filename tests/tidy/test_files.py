"""Rules for every file of the repository: size, no loose ends, nothing that ties it to one machine."""

import ast
import functools
import io
import re
import tokenize
from pathlib import PurePosixPath

from tests.tidy.repository import PACKAGES, ROOT, python_files, repository_files

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70


# Spelled in pieces, so that this file does not hold what it looks for.
REGISTRY_HOSTS = ("pypi" + ".org", "python" + "hosted.org")
LOCK_FILES = frozenset({"poetry.lock", "uv.lock", "pdm.lock", "Pipfile.lock", "pixi.lock", "pylock.toml"})
REGISTRY_SETTINGS = frozenset({"pip.conf", ".pypirc", "uv.toml"})

_LOOSE_END = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
_TYPE_IGNORE = re.compile(r"type:\s*ignore(?P<codes>\[[\w\-, ]+\])?(?P<rest>.*)")
_NOQA = re.compile(r"\bnoqa\b(?P<codes>:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?(?P<rest>.*)", re.IGNORECASE)


parsed = functools.cache(ast.parse)


def long_functions(source: str) -> list[str]:
    """The functions of more than `MAX_FUNCTION_LINES`, with their length."""
    return [
        f"{node.name}: {length}"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (length := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def bare_exemptions(source: str) -> list[str]:
    """The comments that silence a checker without saying which rule, or why."""
    if not (_TYPE_IGNORE.search(source) or _NOQA.search(source)):  # most files, which need no tokens
        return []
    comments = (
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    return [
        f"line {token.start[0]}: {token.string}"
        for token in comments
        for pattern in (_TYPE_IGNORE, _NOQA)
        if (found := pattern.search(token.string))
        and not (found["codes"] and re.search(r"\w", found["rest"]))
    ]


def test_no_file_is_too_long() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in python_files(*PACKAGES)}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {name: long_functions((ROOT / name).read_text()) for name in python_files(*PACKAGES)}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_the_length_of_a_function_is_counted_from_def_to_its_last_line() -> None:
    body = "".join(f"    x = {number}\n" for number in range(MAX_FUNCTION_LINES - 1))
    assert long_functions(f"@decorated\ndef f():\n{body}") == []
    assert long_functions(f"async def f():\n{body}    y = 0\n") == ["f: 71"]


def test_no_package_has_loose_ends() -> None:
    loose = [
        f"{name}:{number}: {line.strip()}"
        for name in python_files(*PACKAGES)
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if _LOOSE_END.search(line)
    ]
    assert loose == []


def class_names(source: str) -> list[str]:
    return [node.name for node in parsed(source).body if isinstance(node, ast.ClassDef)]


def test_no_class_name_occurs_twice() -> None:
    homes: dict[str, list[str]] = {}
    for file in python_files(*PACKAGES):
        for name in class_names((ROOT / file).read_text()):
            homes.setdefault(name, []).append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_every_package_directory_says_what_it_is_for() -> None:
    directories = {PurePosixPath(name).parent for name in python_files(*PACKAGES)}
    silent = []
    for directory in sorted(directories):
        start = ROOT / directory / "__init__.py"
        if not start.is_file() or not ast.get_docstring(parsed(start.read_text())):
            silent.append(str(directory))
    assert silent == []


def test_every_exemption_from_a_checker_has_a_code_and_a_reason() -> None:
    found = {
        name: bare_exemptions((ROOT / name).read_text())
        for name in python_files(*PACKAGES, "tests", "benchmarks")
    }
    assert {name: comments for name, comments in found.items() if comments} == {}


def test_the_exemption_check_wants_both_code_and_reason() -> None:
    bare = (
        "# noqa",
        "# noqa: E501",
        "# type: ignore",
        "# type: ignore[misc]",
        "# ruff: noqa",
        "# noqa: a reason",
    )
    assert [comment for comment in bare if len(bare_exemptions(f"x = 1  {comment}\n")) != 1] == []
    good = ("# noqa: S603 - the command is ours", "# type: ignore[misc]  # the stub is wrong")
    assert [comment for comment in good if bare_exemptions(f"x = 1  {comment}\n")] == []
    assert bare_exemptions("x = '# noqa'\n") == []
    # One reason at the end serves both; a missing one is missed by both.
    assert bare_exemptions("x = 1  # type: ignore[misc]  # noqa: E501 - a table\n") == []
    assert len(bare_exemptions("x = 1  # type: ignore[misc]  # noqa: E501\n")) == 1


def test_no_file_names_a_package_registry() -> None:
    found = [
        f"{name}: {host}"
        for name in repository_files()
        for host in REGISTRY_HOSTS
        if host.encode() in (ROOT / name).read_bytes().lower()
    ]
    assert found == []


def test_no_lock_file_or_registry_setting_is_in_the_repository() -> None:
    unwanted = LOCK_FILES | REGISTRY_SETTINGS
    assert [name for name in repository_files() if PurePosixPath(name).name in unwanted] == []


def test_tests_and_benchmarks_leave_nothing_in_the_temporary_directory() -> None:
    """They use `tmp_path`, or a `TemporaryDirectory` that ends with its block; these leave a file or a directory behind."""
    unwanted = re.compile(r"\btempfile\.(?!TemporaryDirectory\b)(\w+)|^from (tempfile) import", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for part in ("tests", "benchmarks")
        for path in sorted((ROOT / part).rglob("*.py"))
        for match in unwanted.finditer(path.read_text())
    ]
    assert found == []
