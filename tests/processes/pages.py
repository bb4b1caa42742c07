"""A document, done as its reader would do it: its files are written, and its commands typed, in order, into one shell.

A fenced block `console` is a session: `$ ` begins a command, and what stands below it is what it prints, where `…` stands
for any text, and JSON may be laid out otherwise. A command without anything below it must succeed. A block that says in its
first line `# NAME` is that file. `<!-- not run: WHY -->` in the line before a block exempts it.

Only what would meet other programs of the machine is changed: the ports, and the paths outside the project's directory.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.support.processes import free_port

ROOT: Final = Path(__file__).parents[2]
STAND_INS: Final = Path(__file__).parent / "stand_ins"
PORTS: Final = {"parley-scheduler": 10299, "parley-agent": 10300, "parley-informant": 10301}
"""The port that each program listens on by itself."""
MODULES: Final = {"parley-scheduler": "scheduler", "parley-agent": "agent", "parley-informant": "informant"}
DEADLINE_S: Final = 200.0

_BLOCK: Final = re.compile(
    r"(?:^<!-- not run: (?P<exempt>[^>]+) -->\n)?^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE: Final = re.compile(r"# ([\w-][\w./-]*\.(?:py|toml|yaml))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `line` is where its fence begins, `exempt` why it is not run, where it is not."""

    language: str
    text: str
    line: int
    exempt: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """A typed command, the output that the page shows for it, and its line."""

    typed: str
    shown: str
    line: int


def blocks(page: str) -> list[Block]:
    return [
        Block(
            found["language"],
            found["text"],
            page.count("\n", 0, found.start("language")) + 1,
            found["exempt"],
        )
        for found in _BLOCK.finditer(page)
    ]


def files(page: str) -> dict[str, str]:
    """The blocks that say in their first line which file they are."""
    found = {}
    for block in blocks(page):
        name = _FILE.match(block.text)
        if name is not None:
            found[name[1]] = block.text
    return found


def commands(page: str) -> list[Command]:
    """The commands that are typed in the sessions of a page."""
    found: list[Command] = []
    for block in blocks(page):
        if block.language != "console" or block.exempt is not None:
            continue
        line = block.line + 1
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            end = next(at for at in _line_ends(part) if _is_whole(part[:at]))
            found.append(Command(part[:end], part[end:].strip(), line))
            line += part.count("\n")
    return found


def _line_ends(text: str) -> Iterator[int]:
    return (match.end() for match in re.finditer(r"\n", text))


def _is_whole(command: str) -> bool:
    if command.endswith("\\\n"):
        return False
    with contextlib.suppress(ValueError):  # a quotation goes on in the next line
        shlex.split(command)
        return True
    return False


def is_like(shown: Any, real: Any) -> bool:
    """Whether an answer is what the page shows; `…` there stands for any text or part of one, and as a key for others."""
    if isinstance(shown, dict) and isinstance(real, dict):
        named = shown.keys() - {"…"}
        is_whole = named == real.keys() if "…" not in shown else named <= real.keys()
        return is_whole and all(is_like(shown[key], real[key]) for key in named)
    if isinstance(shown, list) and isinstance(real, list):
        return len(shown) == len(real) and all(map(is_like, shown, real))
    if isinstance(shown, str) and isinstance(real, str):
        pattern = ".*".join(map(re.escape, shown.split("…")))
        return re.fullmatch(pattern, real, re.DOTALL) is not None
    return bool(shown == real) and type(shown) is type(real)


def agrees(shown: str, printed: str) -> bool:
    with contextlib.suppress(ValueError):
        return is_like(json.loads(shown), json.loads(printed))
    return is_like(shown, "\n".join(line.rstrip() for line in printed.strip().splitlines()))


class Reader:
    """Somebody who follows a page in the directory `place`, on ports that nobody else uses. A context manager."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._replaced = {str(port): str(free_port()) for port in PORTS.values()}
        self._replaced["/tmp"] = str(place / "elsewhere")  # where an example keeps its state
        self._shells: list[int] = []
        for directory in ("said", "elsewhere"):
            (place / directory).mkdir()
        self._make_programs(place / "programs")
        shutil.copytree(ROOT / "examples", place / "examples")
        for example in sorted((place / "examples").rglob("*.yaml")):
            example.write_text(self._here(example.read_text()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for shell in self._shells:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell, signal.SIGKILL)

    def _here(self, text: str) -> str:
        """A text of the page as it is used here."""
        for there, here in self._replaced.items():
            text = re.sub(rf"(?<![\w.]){re.escape(there)}(?!\w)", here, text)
        return text

    def _as_told(self, text: str) -> str:
        """A text that was printed here, as the page would show it."""
        for there, here in self._replaced.items():
            text = re.sub(rf"(?<![\w.]){re.escape(here)}(?!\w)", there, text)
        return text

    def _make_programs(self, directory: Path) -> None:
        """Our programs as they are installed, on their port here."""
        directory.mkdir()
        port = {name: self._replaced[str(number)] for name, number in PORTS.items()}
        python = shlex.quote(sys.executable)
        scripts = {name: f'exec {python} -m {MODULES[name]} --port {port[name]} "$@"' for name in PORTS}
        agent = f"http://127.0.0.1:{port['parley-agent']}"
        scripts["parley"] = (
            f"export PARLEY_AGENT={agent} PARLEY_SCHEDULER=http://127.0.0.1:{port['parley-scheduler']}; "
            f'case $1 in status) shift; set -- status --agent {agent} "$@";; esac; exec {python} -m parley "$@"'
        )
        scripts["parley-agent"] = (
            f'case $1 in plugins|qos) exec {python} -m agent "$@" --address {agent};; esac; {scripts["parley-agent"]}'
        )
        scripts["python"] = f'exec {python} -B "$@"'
        scripts["pytest"] = f'exec {python} -B -m pytest -p no:cacheprovider "$@"'
        scripts["make"] = 'test "$*" = setup  # it is set up already'
        scripts["pip"] = f'exec {python} {shlex.quote(str(STAND_INS / "pip.py"))} "$@"'
        if shutil.which("curl") is None:
            scripts["curl"] = f'exec {python} {shlex.quote(str(STAND_INS / "curl.py"))} "$@"'
        for name, script in scripts.items():
            path = directory / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    def follow(self, page: str) -> None:
        """Write the page's files, type its commands, and compare what they print."""
        for name, text in files(page).items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._here(text))
        typed = commands(page)
        assert typed, "the page has no session"
        self._type([self._here(command.typed) for command in typed])
        for number, command in enumerate(typed):
            code, printed = self._said(number)
            told = f"line {command.line}: {command.typed}printed, with exit code {code}:\n{printed}"
            assert code is not None, f"line {command.line}: {command.typed}did not end"
            if command.shown:
                assert agrees(command.shown, self._as_told(printed)), told
            else:
                assert code == 0, told

    def _said(self, number: int) -> tuple[int | None, str]:
        """The exit code and the output of a command, as far as it came."""
        code, printed = (self.place / "said" / f"{number}.{kind}" for kind in ("code", "text"))
        text = printed.read_text(errors="replace") if printed.exists() else ""
        return int(code.read_text()) if code.exists() else None, text

    def _type(self, typed: list[str]) -> None:
        lines: list[str] = []
        for number, command in enumerate(typed):
            lines += [f"exec >said/{number}.text 2>&1", command.rstrip("\n"), f"echo $? >said/{number}.code"]
        (self.place / "session.sh").write_text("\n".join(lines) + "\n")
        environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PARLEY"))
            },
            "PATH": f"{self.place / 'programs'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{self.place}{os.pathsep}{ROOT}",
        }
        shell = subprocess.Popen(
            ["bash", "session.sh"],
            cwd=self.place,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._shells.append(shell.pid)
        try:
            shell.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait()
