"""Fixtures of the tests of rules, board and runbook. Without Debian's Prometheus those that need it are skipped."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.monitoring.families_of_others import page_of_others
from tests.monitoring.prometheus_server import Prometheus, prometheus_of
from tests.monitoring.troubled_house import TroubledHouse, troubled_house
from tests.support.processes import running, vms
from tests.support.short_paths import short_directory
from tests.support.waiting import shown_blocking
from tests.support.watch_assets import PrometheusPrograms, WatchAssetsError, find_prometheus

VMS = 4


@pytest.fixture(scope="session")
def prometheus_programs() -> PrometheusPrograms:
    try:
        return find_prometheus()
    except WatchAssetsError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def house() -> Iterator[TroubledHouse]:
    """The house with a lot of trouble, its files broken as well."""
    with short_directory() as directory, troubled_house(directory) as found:
        found.break_files()
        yield found


@pytest.fixture(scope="session")
def demo() -> Iterator[dict[str, list[str]]]:
    """The addresses of a real demo's programs by job, as soon as it has negotiated."""
    with short_directory() as directory, ExitStack() as stack:
        arguments = ("--vms", str(VMS), "--output", "json", "--quiet", "--directory", str(directory / "d"))
        program = stack.enter_context(running("parley", "demo", *arguments, output=directory / "out"))
        found = shown_blocking("the demo's programs", lambda: _addresses(directory / "d"))
        agent = int(found["parley-agent"][0].rpartition(":")[2])
        shown_blocking(
            "the demo's permits",
            lambda: len(known := vms(agent)) == VMS and all(vm["permit"] for vm in known.values()),
        )
        yield found
        program.end(signal.SIGINT)


def _addresses(directory: Path) -> dict[str, list[str]] | None:
    """The addresses of the demo's programs: the agent tells its own in its log, the others are in the agent's settings."""
    settings = json.loads((directory / "agent.yaml").read_text())
    lines = (directory / "logs/agent.log").read_text().splitlines()
    serving = [line for each in lines if (line := json.loads(each))["event"] == "serving"]
    if not serving:
        return None
    agent = re.findall(r"127\.0\.0\.1:\d+", json.dumps(serving[-1]))
    return {
        "parley-scheduler": re.findall(r"[\d.]+:\d+", settings["scheduler"]),
        "parley-agent": agent[:1],
        "parley-informant": [vm["informant"].removeprefix("http://") for vm in settings["vms"]],
    }


@pytest.fixture(scope="session")
def prometheus(
    prometheus_programs: PrometheusPrograms, demo: dict[str, list[str]], house: TroubledHouse
) -> Iterator[Prometheus]:
    """A real Prometheus that has scraped the demo, the troubled house and what others show, several times."""
    troubled = {
        "parley-scheduler": [house.scheduler],
        "parley-agent": [house.agent],
        "parley-informant": [*house.informants, house.node_informant],
    }
    with short_directory() as directory, page_of_others() as others:
        troubled["parley-scheduler"].append(others.server_port)
        targets = {
            job: [*demo[job], *(f"127.0.0.1:{port}" for port in ports)] for job, ports in troubled.items()
        }
        with prometheus_of(prometheus_programs, targets, directory) as found:
            # Rates need two scrapes, and what waits for a second one needs a third.
            enough = "min(count_over_time(up[5m])) >= 4 and on () count(ALERTS) > 0"
            shown_blocking("enough scrapes", lambda: found.query(enough))
            yield found
