"""Feature gates that change in the settings file while the agent runs."""

from collections.abc import Mapping
from pathlib import Path

from agent.daemon.qos import GatesFile
from hosting.settings import FaultsError
from tests.support.servers import QUIET

SETTINGS = "{node: n, scheduler: 'http://h:1', stateDirectory: /tmp/x, qos: {featureGates: {%s}}}"


async def test_changed_gates_are_switched_and_those_of_the_command_line_win(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    switched: list[Mapping[str, bool]] = []
    gates = GatesFile(file, {"CPUBurst": True}, switched.append, QUIET)
    for written, expected in (
        ("CPUSuppress: true", []),
        ("CPUSuppress: true, CPUBurst: false", [{"CPUSuppress": True, "CPUBurst": True}]),
        ("CPUSuppres: false", []),
        ("MemoryEvict: true", [{"MemoryEvict": True, "CPUBurst": True}]),
    ):
        file.write_text(SETTINGS % written)
        await gates.look()
        assert switched == expected, written
        switched.clear()


async def test_gates_that_the_manager_refuses_change_nothing_and_end_nothing(tmp_path: Path) -> None:
    def refuse(gates: Mapping[str, bool]) -> None:
        raise FaultsError([f"{gates}"])

    file = tmp_path / "agent.yaml"
    gates = GatesFile(file, {}, refuse, QUIET)
    for written in ("CPUSuppress: false", "CPUSuppress: true"):
        file.write_text(SETTINGS % written)
        await gates.look()
