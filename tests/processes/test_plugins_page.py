"""docs/plugins.md, done step by step: its files, its test, its commands, and what they print."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.programs import Program, fetch, free_port, running, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plugins.md").read_text()
PORT = 10299
FILES = (
    "parley_licences.py",
    "test_licences.py",
    "pyproject.toml",
    "config.yaml",
    "cluster.yaml",
    "ask.py",
    "wrong.yaml",
)
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def named(page: str) -> dict[str, str]:
    """The fenced blocks that say in their first line which file they are."""
    found = {}
    for block in _BLOCK.finditer(page):
        name = re.match(r"# ([\w.-]+\.(?:py|toml|yaml))\n", block["text"])
        if name is not None:
            found[name[1]] = block["text"]
    return found


def commands(page: str) -> list[tuple[str, str]]:
    """What is typed in the sessions of the page, and what it prints."""
    found: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(page):
        if block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                end = next(at for at in _line_ends(part) if _is_whole(part[:at]))
                found.append((part[:end], part[end:].strip()))
    return found


def _line_ends(text: str) -> Iterator[int]:
    return (match.end() for match in re.finditer(r"\n", text))


def _is_whole(command: str) -> bool:
    with contextlib.suppress(ValueError):  # a quotation goes on in the next line
        shlex.split(command)
        return True
    return False


def is_like(shown: Any, real: Any) -> bool:
    """Whether an answer is what the page shows; `…` there stands for any text."""
    if isinstance(shown, dict) and isinstance(real, dict):
        return shown.keys() == real.keys() and all(is_like(shown[key], real[key]) for key in shown)
    if isinstance(shown, list) and isinstance(real, list):
        return len(shown) == len(real) and all(map(is_like, shown, real))
    return bool(shown == real) or (shown == "…" and isinstance(real, str))


def curl(arguments: list[str], port: int) -> Any:
    """What `curl` with these arguments would get, as JSON; `-s`, `-X` and `-d` are known."""
    method, data, address = None, None, ""
    rest = iter(arguments)
    for argument in rest:
        match argument:
            case "-s":
                pass
            case "-X":
                method = next(rest)
            case "-d":
                data = next(rest).encode()
            case _:
                address = argument.replace(str(PORT), str(port))
    assert address.startswith(f"http://127.0.0.1:{port}/"), address
    request = urllib.request.Request(address, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of the page, as if its distribution were installed."""
    files = named(PAGE)
    for name in FILES:
        (tmp_path / name).write_text(files[name])
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


def await_health(scheduler: Program, port: int) -> None:
    """Wait until it serves; what it said where it has ended in the place of that."""

    def look() -> bytes:
        assert scheduler.process.poll() is None, scheduler.text()
        return fetch(port, "/readyz")

    until("the scheduler's health", look)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python program in the directory of the page, to its end."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_test_of_the_page_passes(place: Path) -> None:
    """And with a plugin that admits everything it does not."""
    passed = run("-B", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "3 passed" in passed.stdout
    plugin = place / "parley_licences.py"
    plugin.write_text(plugin.read_text().replace("admitted=left", "admitted=None"))
    failed = run("-B", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 failed, 2 passed" in failed.stdout


def test_the_sessions_of_the_page_print_what_it_shows(place: Path) -> None:
    """One scheduler, and every command in the order of the page."""
    port = free_port()
    script = place / "ask.py"
    script.write_text(script.read_text().replace(str(PORT), str(port)))
    files = ("--cluster", "cluster.yaml", "--config", "config.yaml")
    arguments = ("--first-start", *files, "--port", str(port))
    with running("scheduler", *arguments, output=place / "scheduler.log") as scheduler:
        await_health(scheduler, port)
        for said in ('"chain":["licences"]', '"pool created"'):
            assert said in PAGE
            assert said in scheduler.text()
        seen = set()
        for typed, printed in commands(PAGE):
            program, *rest = shlex.split(typed)
            seen.add(program)
            match program:
                case "python":
                    done = run(*rest)
                    assert (done.stdout.strip(), done.stderr) == (printed, ""), typed
                case "curl":
                    answer = curl(rest, port)
                    assert is_like(json.loads(printed), answer), f"{typed}{json.dumps(answer)}"
                case _:
                    assert program == "parley-scheduler"
                    done = run("-m", "scheduler", *rest)
                    assert (done.returncode, done.stderr.strip()) == (2, printed), typed
        assert seen == {"python", "curl", "parley-scheduler"}
        assert "Traceback" not in scheduler.text()
        assert scheduler.end(signal.SIGTERM) == 0


def test_the_examples_run_together(tmp_path: Path) -> None:
    """`examples/pools.yaml` under `examples/pool-plugins.yaml`: both pools are taken up."""
    port = free_port()
    examples = ROOT / "examples"
    arguments = (
        *("--cluster", str(examples / "pools.yaml")),
        *("--config", str(examples / "pool-plugins.yaml")),
        *("--port", str(port)),
    )
    with running("scheduler", *arguments, output=tmp_path / "scheduler.log") as scheduler:
        await_health(scheduler, port)
        pools = json.loads(fetch(port, "/v1/pools"))["pools"]
        assert [pool["name"] for pool in pools] == ["ci-runners", "dev-boxes"]
        assert '"chain":["quota"]' in scheduler.text()
        assert "not taken up" not in scheduler.text()
        assert scheduler.end(signal.SIGTERM) == 0


def test_the_reader_of_the_page_finds_files_and_commands() -> None:
    """A command may go over several lines while a quotation is open; `…` stands for any text and for nothing else."""
    page = "```py\n# a.py\nx\n```\n```\n# no\n```\n```console\n$ curl -d '{\n}' u\n{}\n$ python a 1\nout\n  more\n```\n"
    assert named(page) == {"a.py": "# a.py\nx\n"}
    assert commands(page) == [("curl -d '{\n}' u\n", "{}"), ("python a 1\n", "out\n  more")]
    assert is_like({"a": ["…", 1]}, {"a": ["text", 1]})
    assert not is_like({"a": "…"}, {"a": 1})
    assert not is_like({"a": 1}, {"a": 1, "b": 2})
    assert not is_like([1], [1, 1])
