"""The units of systemd in deploy/systemd/, as far as they can be read without systemd."""

import shlex
from collections import defaultdict
from pathlib import Path

from tests.tidy.repository import ROOT

UNITS = ROOT / "deploy/systemd"
BIN = "/opt/parley/bin/"


def settings(unit: Path) -> dict[str, dict[str, list[str]]]:
    """Each section's settings with all their values, in order. Raises `ValueError` for a line that is none."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            if not equals or not section:
                raise ValueError(f"{unit.name}: {line}")
            found[section][key].append(value)
    return found


def command(unit: Path) -> list[str]:
    (line,) = settings(unit)["Service"]["ExecStart"]
    return shlex.split(line)
