"""A scheduler, an agent and informants with a lot of trouble: what alerts are for, and what the runbook's commands look at.

Node `node-1` is the agent's:

- `default/db-0` wants four CPUs, and its pool `ci` has two units: it is denied more, its pool is saturated, its guest is short.
- `default/db-1` names a pool that nobody has created, and its informant does not answer.
- `default/db-2` wants more, and the tenant of its pool `stray` was taken out of the rules: the plugin `quota` parks it.
- `default/db-3` has no agent, so it stays unsettled.

On `node-2` a pod uses more than there is. Somebody sends what is no request. A node informant is there, and no pod. Neither the cluster file nor the rules can be read, since `break_files` was called.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.processes import Program, amount, fetch, free_port, post, running, vms, write_json
from tests.support.waiting import shown_blocking

BUSY: Final = ("--workload", "step", "--low", "3.6", "--high", "3.6", "--period", "3600")
IDLE: Final = ("--workload", "step", "--low", "0.2", "--high", "0.2", "--period", "3600")
POOLS: Final = {"db-0": "ci", "db-1": "nobodys", "db-2": "stray"}


@dataclass(frozen=True, slots=True)
class TroubledHouse:
    """The ports of its programs, and the directory of the files that they read."""

    scheduler: int
    agent: int
    informants: tuple[int, ...]
    node_informant: int
    directory: Path

    def has_settled(self) -> bool:
        """Whether everybody has seen the trouble."""
        page = fetch(self.scheduler, "/metrics").decode()
        shown = vms(self.agent)
        return (
            all(f'pool="{pool}",state="{state}"' in page for pool, state in STATES)
            and 'parley_scheduler_vms{state="unsettled"} 1.0' in page
            and shown["default/db-0"]["reasonCode"] is not None
            and shown["default/db-1"]["state"] == "stuck"
            and shown["default/db-2"]["reasonCode"] is not None
        )

    def break_files(self) -> None:
        """Write a cluster file and rules that cannot be read; what was read before stays in force."""
        (self.directory / "cluster.yaml").write_text("nodes: 7\n")
        (self.directory / "rules.yaml").write_text("growth: 7\n")
        shown_blocking("the files' faults", self._has_stale_files)

    def _has_stale_files(self) -> bool:
        page = fetch(self.scheduler, "/metrics").decode()
        return all(f"parley_scheduler_{each}_stale 1.0" in page for each in ("cluster", "config"))


STATES: Final = (("ci", "saturated"), ("nobodys", "unknown"), ("stray", "parked"))


def _cluster() -> dict[str, Any]:
    return {
        "nodes": [
            {"name": "node-1", "allocatable": amount(16), "computeUnit": amount(1)},
            {"name": "node-2", "allocatable": amount(2), "computeUnit": amount(1)},
        ],
        "pools": [
            {"name": "ci", "computeUnit": amount(1), "labels": {"parley.dev/tenant": "builders"}},
            {"name": "stray", "computeUnit": amount(1), "labels": {"parley.dev/tenant": "leavers"}},
        ],
        "pods": [
            {"namespace": "d", "name": "big", "uid": "uid-big", "node": "node-2", "requests": amount(3)}
        ],
        "vms": [
            {
                **_vm(f"db-{index}"),
                "node": "node-1",
                "labels": {"parley.dev/pool": POOLS[f"db-{index}"]} if f"db-{index}" in POOLS else {},
            }
            for index in range(4)
        ],
    }


def _vm(name: str) -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": f"uid-{name}", "min": amount(1), "max": amount(4)}


def _rules(*more: str) -> dict[str, Any]:
    tenants = [{"name": "builders", "limit": 2}, *({"name": name} for name in more)]
    args = {"computeUnit": amount(1), "tenants": tenants}
    return {"pools": {"plugins": [{"name": "quota", "args": args}]}}


def _agent(scheduler: int, informants: tuple[int, ...], state: Path) -> dict[str, Any]:
    return {
        "node": "node-1",
        "scheduler": f"http://127.0.0.1:{scheduler}/",
        "stateDirectory": str(state),
        "periods": {"metrics": 0.5, "tick": 2},
        "resizeDelay": 0.05,
        "vms": [
            {
                **_vm(f"db-{index}"),
                "computeUnit": amount(1),
                "informant": f"http://127.0.0.1:{port}",
            }
            for index, port in enumerate(informants)
        ],
    }


@contextmanager
def troubled_house(directory: Path) -> Iterator[TroubledHouse]:
    """The house, as soon as everybody has seen the trouble. Its files are still good."""
    house = TroubledHouse(
        free_port(), free_port(), tuple(free_port() for _ in range(3)), free_port(), directory
    )
    cluster = write_json(directory / "cluster.yaml", _cluster())
    rules = write_json(directory / "rules.yaml", _rules("leavers"))
    settings = write_json(
        directory / "agent.yaml", _agent(house.scheduler, house.informants, directory / "state")
    )
    guest = write_json(directory / "guest.yaml", {"protect": False})
    with ExitStack() as programs:
        started: list[Program] = []

        def start(module: str, name: str, port: int, *arguments: str) -> None:
            output = directory / f"{name}.log"
            program = running(module, *arguments, "--port", str(port), output=output)
            started.append(programs.enter_context(program))

        journal = ("--journal", str(directory / "journal"), "--first-start")
        files = ("--cluster", str(cluster), "--config", str(rules))
        start("scheduler", "scheduler", house.scheduler, *files, *journal)
        for index, load in ((0, BUSY), (2, BUSY)):  # nobody listens at the port of the second one
            start("informant", f"informant-{index}", house.informants[index], "--config", str(guest), *load)
        shown_blocking("the scheduler", lambda: fetch(house.scheduler, "/readyz"))
        post(house.scheduler, b"{}")  # from somebody who is no agent
        write_json(directory / "new.yaml", _rules()).replace(rules)
        shown_blocking("the new rules", lambda: "configuration" in started[0].text())
        start("informant", "node-informant", house.node_informant, "--node")
        start("agent", "agent", house.agent, "--config", str(settings))
        shown_blocking("the trouble", house.has_settled)
        yield house
        assert [each.text() for each in started if "Traceback" in each.text()] == []
