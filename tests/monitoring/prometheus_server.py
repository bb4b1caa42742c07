"""A real Prometheus on loopback, with the alert rules of `deploy/monitoring`, that scrapes what it is told every half a second."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.processes import free_port
from tests.support.waiting import PATIENCE_S, shown_blocking
from tests.support.watch_assets import PrometheusPrograms

ROOT: Final = Path(__file__).parents[2]
MONITORING: Final = ROOT / "deploy/monitoring"


class QueryError(Exception):
    """Prometheus has refused a query, or warns of it."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Its HTTP API."""

    port: int

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises `QueryError`, and `OSError` where nobody answers, or it has not started yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (400, 422):
                raise
            with error:
                raise QueryError(f"{parameters}: {error.read().decode()}") from None
        if answer["status"] != "success" or answer.get("warnings"):
            raise QueryError(f"{parameters}: {answer}")
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        data = self.get("query", query=expression)
        result: list[dict[str, Any]] = (
            data["result"] if data["resultType"] == "vector" else [{"value": data["result"]}]
        )
        return result

    def series(self, selector: str) -> list[dict[str, str]]:
        """The labels of every series that was ever scraped and that the selector chooses."""
        found: list[dict[str, str]] = self.get("series", **{"match[]": selector})
        return found

    def families(self) -> dict[str, str]:
        """The kind of every metric that was scraped by its name, those without samples included."""
        return {name: told[0]["type"] for name, told in self.get("metadata").items()}

    def alerts(self) -> dict[str, list[dict[str, str]]]:
        """The labels of the alerts that fire, or wait for their time, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self.get("alerts")["alerts"]:
            found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


@contextmanager
def prometheus_of(
    programs: PrometheusPrograms, targets: Mapping[str, Sequence[str]], directory: Path
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these addresses by job, ready to be asked. It ends by its own pid."""
    port = free_port()
    settings = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yaml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ],
    }
    (directory / "prometheus.yaml").write_text(json.dumps(settings))
    output = directory / "prometheus.log"
    command = (
        str(programs.prometheus),
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        found = Prometheus(port)

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return bool(found.get("targets")["activeTargets"])

        shown_blocking("Prometheus", is_ready)
        yield found
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
            raise
