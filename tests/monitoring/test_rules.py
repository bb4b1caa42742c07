"""The alert rules by themselves: Debian's promtool checks them and their unit tests, and every alert has both kinds of test."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus_server import MONITORING, ROOT
from tests.monitoring.queries import rules
from tests.support.watch_assets import PrometheusPrograms


def promtool(programs: PrometheusPrograms, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [programs.promtool, *arguments],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def test_promtool_takes_the_rules(prometheus_programs: PrometheusPrograms) -> None:
    code, said = promtool(prometheus_programs, "check", "rules", "--lint-fatal", "alerts.yaml")
    assert code == 0, said


def test_promtool_takes_the_example_of_a_configuration(prometheus_programs: PrometheusPrograms) -> None:
    code, said = promtool(prometheus_programs, "check", "config", "--lint-fatal", "prometheus.yaml")
    assert code == 0, said


def test_promtool_takes_the_example_for_a_cluster(
    prometheus_programs: PrometheusPrograms, tmp_path: Path
) -> None:
    """But for the discovery, which Debian's Prometheus is built without; the token's file is one of this machine."""
    token = tmp_path / "token"
    token.write_text("a-token")
    written = yaml.safe_load((MONITORING / "prometheus-kubernetes.yaml").read_text())
    written["rule_files"] = [str(MONITORING / each) for each in written["rule_files"]]
    for job in written["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs")
        assert Path(job["authorization"]["credentials_file"]).is_absolute()
        job["authorization"]["credentials_file"] = str(token)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(written))
    where = str(tmp_path / "prometheus.yaml")
    code, said = promtool(prometheus_programs, "check", "config", "--lint-fatal", where)
    assert code == 0, said


@pytest.mark.parametrize("job", ["parley-scheduler", "parley-agent"])
def test_of_the_pods_in_a_cluster_those_that_run_are_scraped_each_as_a_series_of_its_own(job: str) -> None:
    """A pod that waits or has ended has no program that could answer. While an agent is replaced its node has two."""
    found = yaml.safe_load((MONITORING / "prometheus-kubernetes.yaml").read_text())["scrape_configs"]
    (relabelled,) = (each["relabel_configs"] for each in found if each["job_name"] == job)
    (dropped,) = (each for each in relabelled if each.get("action") == "drop")
    assert dropped["source_labels"] == ["__meta_kubernetes_pod_phase"]
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    assert [each for each in phases if not re.fullmatch(dropped["regex"], each)] == ["Running", "Unknown"]
    assert [each for each in relabelled if each.get("source_labels") == ["__meta_kubernetes_pod_name"]]


def test_every_alert_fires_and_is_quiet_as_its_unit_tests_say(
    prometheus_programs: PrometheusPrograms,
) -> None:
    code, said = promtool(prometheus_programs, "test", "rules", "alerts_test.yaml")
    assert code == 0, said


def test_the_unit_tests_take_every_group_in_its_order() -> None:
    """A group that is left out would be taken at any time, and alerts might see what was recorded a minute before."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    assert unit_tests()["group_eval_order"] == [group["name"] for group in groups]


@cache
def unit_tests() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())
    return found


def looks() -> list[dict[str, Any]]:
    return [look for test in unit_tests()["tests"] for look in test["alert_rule_test"]]


@pytest.mark.parametrize("name", rules("alert"))
def test_every_alert_is_seen_to_fire_and_to_be_quiet(name: str) -> None:
    seen = [look for look in looks() if look["alertname"] == name]
    assert any(look.get("exp_alerts") for look in seen)
    assert any(not look.get("exp_alerts") for look in seen)


def test_the_unit_tests_are_about_alerts_that_there_are() -> None:
    assert {look["alertname"] for look in looks()} == set(rules("alert"))


@pytest.mark.parametrize("name", rules("alert"))
def test_every_alert_says_how_bad_it_is_and_what_to_read(name: str) -> None:
    rule = rules("alert")[name]
    assert re.fullmatch("Parley[A-Z][A-Za-z]+", name)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/guides/runbook.md#{name.lower()}"


def test_the_command_of_the_documents_makes_every_link_to_the_runbook_whole(tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^\$ (sed .*alerts\.yaml)$", (ROOT / "docs/guides/operating.md").read_text(), re.MULTILINE
    )
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)
    made = yaml.safe_load((tmp_path / "alerts.yaml").read_text())
    linked = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in made["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    site = "https://wiki.example.org/parley/"
    assert linked == {name: f"{site}docs/guides/runbook.md#{name.lower()}" for name in rules("alert")}


def test_recorded_names_say_level_metric_and_operation() -> None:
    """As Prometheus recommends."""
    assert [
        name for name in rules("record") if not re.fullmatch(r"[a-z_]+:parley_[a-z_]+:[a-z0-9_]+", name)
    ] == []
