"""The demo describes its stage."""

import os
import sys
from pathlib import Path

import pytest

from parley.scene import Stage
from protocol.values import Resources

STAGE = Stage(
    directory=Path("/demo"),
    node="n1",
    reservable=Resources(2000, 2**31),
    agent_port=4001,
    scheduler_port=4002,
    programs=(),
    steps={"demo/a b": Resources(1000, 2**30), "demo/c": Resources(1000, 2**30)},
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of the name `parley` in a directory with a blank in its name, which is the working directory."""
    place = tmp_path / "my venv"
    place.mkdir()
    (place / "parley").write_text("#!/bin/sh\n")
    (place / "parley").chmod(0o755)
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", os.defpath)
    return place


@pytest.mark.parametrize(
    ("path", "called", "program"),
    [
        pytest.param("", "./parley", "./parley", id="as-it-was-called"),
        pytest.param("", "{place}/parley", "'{place}/parley'", id="quoted-for-a-shell"),
        pytest.param("{place}", "{place}/parley", "parley", id="found-on-the-path"),
        pytest.param("", "{place}/__main__.py", f"{sys.executable} -m parley", id="as-a-module"),
    ],
)
def test_the_command_that_explains_a_vm_can_be_pasted_and_has_both_addresses(
    installed: Path, monkeypatch: pytest.MonkeyPatch, path: str, called: str, program: str
) -> None:
    monkeypatch.setenv("PATH", path.format(place=installed) or os.defpath)
    monkeypatch.setattr(sys, "argv", [called.format(place=installed), "demo"])
    wanted = f"{program.format(place=installed)} explain 'demo/a b' --scheduler 127.0.0.1:4002 --agent 127.0.0.1:4001"
    assert STAGE.explanation == wanted
