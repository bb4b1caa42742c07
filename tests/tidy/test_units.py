"""The units of systemd start what there is, with options that there are, and the files that are installed with them."""

import shutil
from pathlib import Path

import click
import pytest

from agent.daemon.settings import AgentSettings
from agent.program import main as agent
from hosting.settings import load
from informant.program import main as informant
from informant.settings import InformantSettings
from parley.certs.names import AGENT_URI
from scheduler.access.settings import NODE, AccessSettings
from scheduler.clusters.file import ClusterFile
from scheduler.program import main as scheduler
from tests.tidy.repository import ROOT, output, pyproject, run
from tests.tidy.units import BIN, UNITS, command, settings

COMMANDS: dict[str, click.Command] = {
    "parley-scheduler": scheduler,
    "parley-agent": agent,
    "parley-informant": informant,
}
FILES = ROOT / "examples/two-machines"
ALL = sorted(UNITS.glob("*.service"))


def test_there_is_a_unit_for_each_program() -> None:
    assert [unit.stem for unit in ALL] == sorted(COMMANDS)


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_program_with_options_that_it_has(unit: Path) -> None:
    program, *arguments = command(unit)
    assert program == f"{BIN}{unit.stem}"
    assert unit.stem in pyproject()["project"]["scripts"]
    options = {name for option in COMMANDS[unit.stem].params for name in option.opts}
    assert [name for name in arguments if name.startswith("--") and name not in options] == []


@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.stem)
def test_a_unit_reads_files_that_are_installed_and_writes_where_it_may(unit: Path) -> None:
    service = settings(unit)["Service"]
    page = (ROOT / "docs/guides/two-machines.md").read_text()
    for path in (argument for argument in command(unit) if argument.startswith("/etc/parley/")):
        name = path.removeprefix("/etc/parley/")
        there = [
            directory
            for directory in ("examples", "examples/two-machines")
            if (ROOT / directory / name).exists()
        ]
        assert any(f"{directory}/{name}" in page for directory in there), path
    for path in (argument for argument in command(unit) if argument.startswith("/var/lib/")):
        assert path.removeprefix("/var/lib/") in service["StateDirectory"]
    assert service["Restart"] == ["always"]
    assert settings(unit)["Install"]["WantedBy"] == ["multi-user.target"]


def test_the_files_of_the_two_machines_fit_together_and_their_units() -> None:
    read = load(FILES / "agent.yaml", AgentSettings)
    cluster = load(FILES / "cluster.yaml", ClusterFile)
    guest = load(FILES / "informant.yaml", InformantSettings)
    assert read.node == cluster.nodes[0].name
    assert [(vm.uid, vm.namespace, vm.name, vm.min, vm.max) for vm in read.vms] == [
        (vm.uid, vm.namespace, vm.name, vm.min, vm.max) for vm in cluster.vms
    ]
    listening = command(UNITS / "parley-scheduler.service")
    assert read.scheduler.url == f"https://{listening[listening.index('--host') + 1]}:10299/"
    access = load(FILES / "access.yaml", AccessSettings)
    assert access.tls is not None
    assert {read.tls.ca, read.tls.certificate, read.tls.key} == {
        access.tls.client_ca,
        access.tls.certificate,
        access.tls.key,
    }, "the same names on both machines"
    assert [each.scopes for each in access.callers if each.certificate == f"{AGENT_URI}{NODE}"] == [
        ["permits"]
    ]
    assert (
        str(read.state_directory).removeprefix("/var/lib/")
        in settings(UNITS / "parley-agent.service")["Service"]["StateDirectory"]
    )
    service = settings(UNITS / "parley-informant.service")["Service"]
    assert f"mkdir -p /sys/fs/cgroup/{guest.cgroup}" in service["ExecStartPre"][0]
    assert str(guest.state).removeprefix("/run/") in service["RuntimeDirectory"]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="needs systemd-analyze (systemd) to look at the units as systemd does",
)
def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    for unit in ALL:
        there = tmp_path / unit.name
        there.write_text(unit.read_text().replace(BIN, f"{tmp_path}/"))
        program = tmp_path / unit.stem
        program.touch()
        program.chmod(0o755)
    done = run(["systemd-analyze", "verify", *(tmp_path / unit.name for unit in ALL)])
    assert (done.returncode, done.stderr) == (0, ""), output(done)


MOST_EXPOSED = {"parley-agent": 20, "parley-scheduler": 20, "parley-informant": 30}
"""In tenths, by the measure of `systemd-analyze security`: 100 is a service without any limit."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (systemd)")
@pytest.mark.parametrize("unit", ALL, ids=lambda unit: unit.stem)
def test_a_unit_has_no_more_rights_than_it_uses(unit: Path) -> None:
    limit = f"--threshold={MOST_EXPOSED[unit.stem]}"
    done = run(["systemd-analyze", "security", "--offline=true", "--no-pager", limit, unit])
    assert done.returncode == 0, output(done)
