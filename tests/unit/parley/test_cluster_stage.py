"""`parley demo --cluster` on a machine that lacks something."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from parley.program import main


@pytest.mark.parametrize("cluster", ["kube", "node"])
def test_what_is_missing_is_said_with_the_command_that_gets_it(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "nothing"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    place = tmp_path / "demo"
    said = CliRunner().invoke(main, ["demo", "--cluster", cluster, "--directory", str(place)])
    assert said.exit_code == 1
    assert f"--cluster {cluster} cannot run here" in said.stderr
    assert "kube" in said.stderr
    assert "`make kube-assets` builds it" in said.stderr
    assert not (place / "cluster").exists()


def test_the_cluster_of_another_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    said = CliRunner().invoke(main, ["demo", "--cluster", "kube", "--directory", str(tmp_path)])
    assert said.exit_code == 1
    assert "is the cluster of another demo: give an empty directory" in said.stderr
