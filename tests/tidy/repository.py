"""The repository as the tidy tests know it: where it is, what belongs to it, and how to run a program on it."""

import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("protocol", "hosting", "informant", "agent", "scheduler", "parley", "labs")

# Only for a tree without git (an unpacked sdist): what `.gitignore` leaves out there.
_GENERATED: Final = frozenset({".git", ".venv", "__pycache__", "dist"})
_FROM_PROTOS: Final = ("_pb2.py", "_pb2_grpc.py")
_GENERATED_ENDS: Final = ("_cache", ".egg-info", ".hypothesis")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path = ROOT,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, input=stdin, env=env, capture_output=True, text=True, check=False, timeout=100
    )


def output(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a program, for the message of an assertion."""
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def repository_files() -> tuple[str, ...]:
    """Every file that a clone holds or will hold with the next commit, as paths from the root, sorted.

    Empty directories and ignored files are not among them, because no clone has them.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = run(command)
    except FileNotFoundError:
        return _walked()
    if listed.returncode != 0:
        return _walked()
    names = {name for name in listed.stdout.split("\0") if name}
    # A file that was deleted but not committed yet is still in the index.
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def _walked() -> tuple[str, ...]:
    found = []
    for directory, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in _GENERATED and not name.endswith(_GENERATED_ENDS)]
        found += [(Path(directory) / name).relative_to(ROOT).as_posix() for name in names]
    return tuple(sorted(found))


def python_files(*tops: str) -> tuple[str, ...]:
    """The Python files below the top-level directories `tops`, but for those that the compiler of .proto files makes: nobody
    writes or reads them, and `test_protos.py` compares them."""
    return tuple(
        name
        for name in repository_files()
        if name.endswith(".py") and name.split("/", 1)[0] in tops and not name.endswith(_FROM_PROTOS)
    )
