"""Every decision is made by code without I/O: what the pure modules import and call is on a list.

The list says what is *allowed*. A list of what is forbidden would let `subprocess`, `secrets` or `datetime` through.
"""

import ast
import builtins
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp
import pytest

from tests.tidy.repository import PACKAGES, ROOT, output, python_files, run

# Each with everything below it. A package that becomes pure is added here.
PURE = (
    "protocol",
    "hosting.kubernetes.core",
    "agent.core",
    "agent.backends.qemu.core",
    "agent.node.plugins.core",
    "agent.node.qos.core",
    "scheduler.permits.core",
    "scheduler.pools.core",
    "scheduler.placing.core",
    "scheduler.quotas",
    "scheduler.explain.core",
    "informant.core",
    "parley.explain.core",
    "parley.listing.core",
)

# Importing `agent.core.x` runs `agent/__init__.py` too, so these modules (not what is below them) are pure as well.
ABOVE_PURE = (
    "hosting",
    "hosting.kubernetes",
    "agent",
    "agent.backends",
    "agent.backends.qemu",
    "agent.node",
    "agent.node.plugins",
    "agent.node.qos",
    "scheduler",
    "informant",
    "scheduler.permits",
    "scheduler.pools",
    "scheduler.placing",
    "scheduler.explain",
    "parley",
    "parley.explain",
    "parley.listing",
    "parley.reach",
    "parley.top",
)

# Pure modules among others that are not: what pure code reads and cleans the answers of peers with, how long it waits, and names of types.
AMONG_OTHERS = (
    "hosting.backoff",
    "hosting.kubernetes.devices",
    "hosting.kubernetes.koordinator",
    "hosting.kubernetes.names",
    "hosting.kubernetes.resources",
    "parley.reach.ports",
    "parley.top.texts",
)

# array: a container of numbers. contextlib: types of what is used with `with`. fnmatch: the case-sensitive matcher is a pure function. random: generators are passed in, and ruff bans the shared one.
ALLOWED = frozenset(
    """
    dataclasses enum typing typing_extensions collections array functools itertools math fractions decimal re struct json
    uuid types abc contextlib operator bisect heapq hashlib string annotated_types fnmatch random msgspec
    """.split()  # noqa: SIM905 - thirty quoted names would hide the list
)

BANNED_CALLS = frozenset({"open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__"})

IMPURE_SNIPPET = "import time\nimport uuid\n\nNOW = time.time()\nME = uuid.uuid4()\n"


def is_pure(module: str) -> bool:
    """Whether the pure rules hold for one of our modules."""
    return module in ABOVE_PURE + AMONG_OTHERS or any(
        module == root or module.startswith(f"{root}.") for root in PURE
    )


def import_faults(imports: Iterable[tuple[str, str]]) -> list[str]:
    """Which of the (importer, imported) pairs a pure importer must not have."""
    return sorted(
        f"{importer} imports {imported}"
        for importer, imported in imports
        if is_pure(importer) and not is_pure(imported) and imported not in ALLOWED
    )


def call_faults(source: str) -> list[str]:
    return [
        f"line {node.lineno}: {node.func.id}()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS
    ]


def pure_files() -> tuple[str, ...]:
    return tuple(
        name
        for name in python_files(*PACKAGES)
        if is_pure(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    )


def pure_directories() -> list[str]:
    roots = {root.replace(".", "/") for root in PURE}
    below = {name.rsplit("/", 1)[0] for name in pure_files() if name not in above_pure_files()}
    return sorted(roots | below)


def above_pure_files() -> set[str]:
    """The `__init__.py` of the packages that hold a pure one, and the pure modules among others: ruff takes them for what is around them."""
    above = {f"{name.replace('.', '/')}/__init__.py" for name in ABOVE_PURE}
    return above | {f"{name.replace('.', '/')}.py" for name in AMONG_OTHERS}


def findings(paths: Iterable[str], copy: Path) -> dict[str, set[str]]:
    """The names that ruff, with the project's own configuration, bans from the snippet if it were each of `paths`."""
    shutil.copy(ROOT / "pyproject.toml", copy)
    found: dict[str, set[str]] = {path: set() for path in paths}
    for path in found:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(IMPURE_SNIPPET)
    done = run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json", "."], cwd=copy
    )
    assert done.returncode in {0, 1}, output(done)
    for each in json.loads(done.stdout):
        if each["code"] == "TID251":
            name = Path(each["filename"]).resolve().relative_to(copy.resolve()).as_posix()
            found[name].add(each["message"].split()[0].strip("`"))
    return found


def test_pure_modules_import_only_what_is_allowed() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    imports = [
        (module, imported)
        for module in graph.modules
        if is_pure(module)
        for imported in graph.find_modules_directly_imported_by(module)
    ]
    assert ("protocol.wire", "protocol.quantities") in imports, "the graph does not see our imports"
    assert ("protocol.wire", "msgspec") in imports, "the graph does not see external imports"
    assert import_faults(imports) == []


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("agent.core.state", "dataclasses", False),
        ("agent.core.state", "protocol.values", False),
        ("agent.core.state", "agent.core", False),
        ("protocol.codec", "msgspec", False),
        ("agent.daemon.main", "asyncio", False),
        ("agent.core.state", "asyncio", True),
        ("agent.core.state", "pydantic", True),
        ("agent.core.state", "agent.runner", True),
        ("agent.core.state", "hosting.client", True),
        ("scheduler.permits.core.deep.ledger", "subprocess", True),
        ("informant.core.table", "datetime", True),
        ("protocol", "time", True),
        ("protocol.wire", "aiohttp", True),
        ("protocol.wire", "pydantic", True),
        ("agent", "agent.daemon", True),
    ],
)
def test_the_import_check_tells_pure_from_impure(importer: str, imported: str, wrong: bool) -> None:
    assert import_faults([(importer, imported)]) == ([f"{importer} imports {imported}"] if wrong else [])


def test_names_that_resemble_a_pure_package_are_not_pure() -> None:
    assert not is_pure("agent.corelib")
    assert not is_pure("protocols.wire")


def test_every_pure_package_exists() -> None:
    files = python_files(*PACKAGES)
    assert [root for root in PURE if f"{root.replace('.', '/')}/__init__.py" not in files] == []


def test_pure_modules_call_no_builtin_that_does_io() -> None:
    faults = {name: call_faults((ROOT / name).read_text()) for name in pure_files()}
    assert {name: found for name, found in faults.items() if found} == {}


def test_the_call_check_finds_each_banned_builtin_and_no_method_of_that_name() -> None:
    assert set(dir(builtins)) >= BANNED_CALLS
    for name in BANNED_CALLS:
        assert call_faults(f"def f():\n    return {name}('x')\n") == [f"line 2: {name}()"]
    assert call_faults("import re\nre.compile('x')\ngate.open()\nopened = open\n") == []


def test_ruff_bans_impure_names_from_every_pure_file_and_from_new_ones(tmp_path: Path) -> None:
    # Behaviour, not the patterns of the configuration: in those, `*` also matches `/`.
    files = [name for name in pure_files() if name not in above_pure_files()]
    new = [f"{directory}/some_new_module.py" for directory in pure_directories()]
    found = findings([*files, *new, "hosting/some_new_module.py"], tmp_path)
    assert found.pop("hosting/some_new_module.py") == set(), "which is no pure file"
    assert {path: names for path, names in found.items() if names != {"time.time", "uuid.uuid4"}} == {}


def test_no_pure_file_uses_a_banned_name_even_where_a_comment_would_allow_it() -> None:
    files = [name for name in pure_files() if name not in above_pure_files()]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--select", "TID251"]
    done = run([*command, *files])
    assert done.returncode == 0, output(done)
