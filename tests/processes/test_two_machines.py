"""docs/guides/two-machines.md on one machine: what the units start, with its files, at loopback addresses of their own."""

import contextlib
import json
import re
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from parley.certs.commands import certs
from tests.support.processes import Program, fetch, free_port, running, vms
from tests.support.waiting import shown_blocking
from tests.tidy.repository import ROOT
from tests.tidy.units import UNITS, command
from tests.unit.informant.cgroup_tree import Tree

MODULES = {"parley-scheduler": "scheduler", "parley-agent": "agent", "parley-informant": "informant"}


class Machines:
    """The machines of the page, by their ports; each address of the page is another loopback address."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports = {"10299": free_port(), "10300": free_port(), "10301": free_port()}
        self.tree = Tree(place / "cgroup")
        self._here = {
            "10.0.0.5": "127.0.0.1",
            "10.0.0.7": "127.0.0.2",
            "10.0.0.21": "127.0.0.3",
            "/etc/parley": str(place),
            "/var/lib/": f"{place}/var-",
            "/run/": f"{place}/run-",
            "cgroup: workload": f"cgroup: {self.tree.path}\nprotect: false",
            **{port: str(free) for port, free in self.ports.items()},
        }
        examples = ROOT / "examples"
        for path in (*(examples / "two-machines").iterdir(), examples / "scheduler.yaml"):
            (place / path.name).write_text(self.here(path.read_text()))
        asked = ("--scheduler", self._here["10.0.0.5"], "--agent", "node-1", "--viewer")
        made = CliRunner().invoke(certs, ["create", str(place / "certificates"), *asked])
        assert made.exit_code == 0, made.output

    def here(self, text: str) -> str:
        """A text of the page as it holds here."""
        return re.sub(
            r"(?<![\w.])(?:" + "|".join(map(re.escape, self._here)) + r")",
            lambda found: self._here[found[0]],
            text,
        )

    def start(self, name: str, port: str, stack: contextlib.ExitStack) -> Program:
        """Run the program that a unit starts, for as long as `stack` is open."""
        _, *arguments = (self.here(argument) for argument in command(UNITS / f"{name}.service"))
        folder = {"parley-scheduler": "scheduler", "parley-agent": "agent-node-1"}.get(name)
        if folder is not None:
            for argument in arguments:
                if argument.endswith((".yaml", ".yml")):
                    file = Path(argument)
                    told = file.read_text().replace(
                        f"{self.place}/tls/", f"{self.place}/certificates/{folder}/"
                    )
                    file.write_text(told)
        log = self.place / f"{name}.log"
        started = running(MODULES[name], *arguments, "--port", str(self.ports[port]), output=log)
        return stack.enter_context(started)


def asked_by_viewer(there: Machines, path: str) -> Any:
    """A page of the scheduler, with the viewer's certificate."""
    folder = there.place / "certificates/viewer"
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    url = f"https://127.0.0.1:{there.ports['10299']}{path}"
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        return json.loads(answer.read())


def test_what_the_units_start_works_together(tmp_path: Path) -> None:
    there = Machines(tmp_path)
    agent, informant = (there.ports[port] for port in ("10300", "10301"))
    with contextlib.ExitStack() as stack:
        there.start("parley-scheduler", "10299", stack)
        there.start("parley-informant", "10301", stack)
        program = there.start("parley-agent", "10300", stack)
        shown_blocking("a VM with a permit", lambda: vms(agent)["default/db-0"]["permit"])
        shown_blocking(
            "an informant that has reached the agent",
            lambda: b'{phase="active"} 1' in fetch(informant, "/metrics"),
        )

        def settled_row() -> dict[str, Any] | None:
            node = asked_by_viewer(there, "/v1/nodes/node-1")
            (row,) = [row for row in node["rows"] if row["kind"] == "vm"]
            return row if row["settled"] else None

        row = shown_blocking("a row that its agent has settled", settled_row)
        # Units never say that nothing ran before: the first minute keeps what an earlier agent might hold.
        assert [floor["cause"] for floor in row["floors"]] == ["handover"]
        serving = next(
            line for line in map(json.loads, program.text().splitlines()) if line["event"] == "serving"
        )
        assert serving["advertised"] == f"127.0.0.2:{agent}"
        assert asked_by_viewer(there, "/v1/audit") == {"faults": []}
