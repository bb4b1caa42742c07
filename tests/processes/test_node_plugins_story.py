"""VMs of a real agent follow a metrics source and a policy in processes of their own, and go on with the built-in ones where a
plugin is killed, hangs or lies; after its return the plugin is used again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import (
    Program,
    agent_file,
    cluster_file,
    fetch,
    free_port,
    running,
    vms,
    write_json,
)
from tests.support.waiting import shown_blocking

PLUGIN = Path(__file__).parent / "stand_ins/told_plugin.py"
RESIZER = Path(__file__).parents[2] / "examples/node-plugins/file_resizer.py"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


class House:
    """A scheduler, an informant, and an agent with two plugins; each plugin says what its file tells."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registry = directory / "registry"
        self.port = free_port()
        self.plugins: dict[str, Program] = {}

    def tell(self, kind: str, say: int, *, lie: bool = False) -> None:
        """The plugin of that type says this from now on."""
        path = self.directory / f"{kind}.json"
        write_json(path.with_suffix(".new"), {"say": say, "lie": lie}).replace(path)

    def start(self, kind: str) -> None:
        arguments = (str(PLUGIN), kind, str(self.directory / f"{kind}.json"), str(self.registry))
        self.plugins[kind] = Program("-c", RUN, *arguments, output=self.directory / f"{kind}.log")

    def start_resizer(self) -> None:
        """Start the resizer of the examples, whose VMs are files."""
        arguments = ("--registry", str(self.registry), "--state", str(self.directory / "sizes"))
        self.plugins["Resizer"] = Program(
            "-c", RUN, str(RESIZER), *arguments, output=self.directory / "Resizer.log"
        )

    def file_of(self) -> Any:
        """The VM as the resizer has it."""
        return json.loads((self.directory / "sizes/sizes/uid-a.json").read_text())["cpu_milli"]

    def signal(self, kind: str, number: int) -> None:
        os.kill(self.plugins[kind].process.pid, number)

    def vm(self) -> dict[str, Any]:
        """The VM as the agent shows it."""
        return vms(self.port)["d/a"]

    def listed(self, kind: str) -> dict[str, Any]:
        """The plugin as the agent shows it."""
        return self._of(kind, fetch(self.port, "/v1/plugins"))

    def printed(self, kind: str) -> dict[str, Any]:
        """The plugin as `parley-agent plugins` shows it."""
        address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "agent", "plugins", "--address", address, "--output", "json"]
        return self._of(kind, subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def _of(self, kind: str, answer: str | bytes) -> dict[str, Any]:
        (found,) = [each for each in json.loads(answer)["plugins"] if kind in each["socket"]]
        return dict(found)

    def shown(self, what: str, look: Callable[[], object]) -> None:
        """Wait until it is so."""
        shown_blocking(what, lambda: look() or None)

    def follows(self, kind: str, say: int) -> bool:
        """Whether the VM goes by what the plugin says, and nothing is wrong."""
        vm = self.vm()
        if kind == "Policy":
            return bool(vm["size"] == {"cpu": str(say), "memory": f"{say}Gi"} and not vm["faults"])
        return bool(vm["load"] and vm["load"]["load1"] == say and not vm["faults"])

    def is_built_in(self, kind: str, why: str) -> bool:
        """Whether the VM goes on with the built-in part, and says why."""
        vm = self.vm()
        peer = "policies: " if kind == "Policy" else "metrics: "
        fault = next((each for each in vm["faults"] if each.startswith(peer)), "")
        if kind == "Policy":
            took_over = "built-in utilisation" in vm["goalReasons"]["cpu"]
        else:
            took_over = vm["metricsAgeSeconds"] < 2 and "the exporter is read instead" in fault
        # Neither the VM nor its permits wait.
        return bool(took_over and why in fault and vm["state"] in ("ok", "denied"))


@contextmanager
def housed(directory: Path, **plugins: str) -> Iterator[House]:
    """The house, with both plugins at work; `plugins` are further settings."""
    house = House(directory)
    scheduler, informant = free_port(), free_port()
    cluster = cluster_file(directory / "cluster.yaml", ["a"])
    settings = agent_file(directory / "agent.yaml", scheduler, {"a": informant})
    content = json.loads(settings.read_text())
    content["periods"]["downWindow"] = 0.5
    content["plugins"] = {"directory": str(house.registry), "metrics": "told", "deadline": 0.5, **plugins}
    content["policies"] = ["plugin:told"]
    write_json(settings, content)
    with ExitStack() as stack:
        start = stack.enter_context
        serving = ("--cluster", str(cluster), "--port", str(scheduler))
        start(running("scheduler", *serving, output=directory / "scheduler.log"))
        # A load of its own: a busy machine would make the guest wish for more than the policy says.
        approving = ("--port", str(informant), "--workload", "step", "--low", "0.2", "--high", "0.2")
        start(running("informant", *approving, output=directory / "informant.log"))
        asking = ("--config", str(settings), "--port", str(house.port))
        start(running("agent", *asking, output=directory / "agent.log"))
        house.shown("the registry", house.registry.is_dir)
        try:
            for kind, say in (("Policy", 3), ("MetricsSource", 7)):
                house.tell(kind, say)
                house.start(kind)
            house.shown("the policy's size", lambda: house.follows("Policy", 3))
            house.shown("the source's load", lambda: house.follows("MetricsSource", 7))
            yield house
        finally:
            for plugin in house.plugins.values():
                if plugin.process.poll() is None:
                    plugin.process.send_signal(signal.SIGCONT)
                    plugin.end(signal.SIGKILL)


@pytest.mark.parametrize("kind", ["Policy", "MetricsSource"])
def test_vms_go_on_with_the_built_in_part_whatever_a_plugin_does(kind: str, tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        house.shown("its registration", lambda: house.listed(kind)["state"] == "registered")
        assert house.printed(kind)["endpoint"] == house.listed(kind)["endpoint"]

        house.plugins[kind].end(signal.SIGKILL)
        house.shown("that nothing answers", lambda: house.is_built_in(kind, "told"))
        house.shown("the loss", lambda: house.listed(kind)["state"] != "registered")
        assert house.listed(kind)["lastError"]
        house.tell(kind, 2)
        house.start(kind)
        house.shown("that it is used again", lambda: house.follows(kind, 2))
        house.shown("its return", lambda: house.listed(kind)["state"] == "registered")

        house.signal(kind, signal.SIGSTOP)
        house.shown("that it hangs", lambda: house.is_built_in(kind, "0.5 s"))
        house.shown("its calls", lambda: house.listed(kind)["calls"]["timedOut"])
        house.tell(kind, 4)
        house.signal(kind, signal.SIGCONT)
        house.shown("that it is used again", lambda: house.follows(kind, 4))

        house.tell(kind, 4, lie=True)
        house.shown("that it lies", lambda: house.is_built_in(kind, "told"))
        house.shown("its failures", lambda: house.listed(kind)["calls"]["failed"])
        house.tell(kind, 3)
        house.shown("that it is believed again", lambda: house.follows(kind, 3))


def test_vms_are_resized_by_the_plugin_and_by_the_back_end_in_its_place(tmp_path: Path) -> None:
    with housed(tmp_path, resizer="file") as house:
        assert "resizer plugin file is away" in house.vm()["warnings"][0]
        house.start_resizer()
        house.tell("Policy", 2)
        house.shown("that the plugin resizes", lambda: house.file_of() == 2000)
        house.shown("its size", lambda: house.follows("Policy", 2) and not house.vm()["warnings"])
        house.plugins["Resizer"].end(signal.SIGKILL)
        house.shown("that it is away", lambda: house.vm()["warnings"])
        house.tell("Policy", 4)
        house.shown("that the back end resizes", lambda: house.follows("Policy", 4))
        assert house.file_of() == 2000
        house.start_resizer()
        house.tell("Policy", 3)
        house.shown("that the plugin resizes again", lambda: house.file_of() == 3000)
