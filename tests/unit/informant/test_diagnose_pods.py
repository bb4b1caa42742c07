"""`--node --once`: which pods are seen, and why something cannot be read; and the command line around it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hosting.cgroups.tree import CgroupTree
from informant import diagnose
from informant.program import main
from tests.support.virtual_time import virtually
from tests.unit.informant.pod_trees import MIB, UID, made_pod


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v1"])
@virtually
async def test_every_pod_is_told_with_its_limits_and_its_use(is_v2: bool, tmp_path: Path) -> None:
    pod = made_pod(tmp_path, is_v2=is_v2)
    pod.cpu(10, 0.5, throttled_s=2)
    pod.memory(100, 50, limit=256)
    pod.events(hits=3, kills=1)
    seen = await diagnose.look_at_pods(CgroupTree(tmp_path))
    content = json.loads(diagnose.pods_as_json(seen))
    assert (content["cgroupVersion"], content["kubepods"]) == (2 if is_v2 else 1, ["kubepods"])
    (told,) = content["pods"]
    assert told["uid"] == UID
    assert (told["memoryNeededBytes"], told["memoryCurrentBytes"]) == (100 * MIB, 150 * MIB)
    assert (told["limitHits"], told["kills"], told["throttledSeconds"]) == (3, 1, 2.0)
    assert told["behind"] == []
    assert told["groups"] == {"pod": {"cpus": 0.5, "memoryBytes": 256 * MIB}}
    lines = list(diagnose.pods_as_text(seen))
    assert (
        "  memory                   100 MiB needed, 150 MiB with page cache, 3 hits of the limit, 1 kill"
        in lines
    )
    assert "  limits of pod            0.5 CPUs, 256 MiB" in lines


@virtually
async def test_what_cannot_be_read_has_its_reason(tmp_path: Path) -> None:
    pod = made_pod(tmp_path)
    (tmp_path / pod.path / "cpu.max").unlink()
    (tmp_path / pod.path / "cpu.pressure").unlink()
    (tmp_path / pod.path / "memory.current").write_text("")
    seen = await diagnose.look_at_pods(CgroupTree(tmp_path))
    lacks = {each.name: each.told for each in seen.findings if not each.is_had}
    assert lacks == {"cpu.max": "is not there", "pressure": "no PSI in this kernel"}
    (told,) = json.loads(diagnose.pods_as_json(seen))["pods"]
    assert told["fault"].endswith("memory.current says nothing")
    assert any("cannot be read" in line for line in diagnose.pods_as_text(seen))


@virtually
async def test_a_tree_without_pods_says_what_may_be_wrong(tmp_path: Path) -> None:
    seen = await diagnose.look_at_pods(CgroupTree(tmp_path))
    assert {each.name: each.told for each in seen.findings if not each.is_had} == {
        "kubelet's tree": "none: is this the host's tree (hostPath /sys/fs/cgroup)?",
        "pods": "none is there",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--node", "--cgroup", "workload"],
            "--node goes with none of",
        ),
        (["--node", "--workload", "step"], "--node goes with none of"),
        (["--cgroup-root", "."], "--cgroup-root goes with --node"),
        (["--node", "--cgroup-root", "nowhere"], "'nowhere' does not exist"),
        (["--node", "--config", "wrong.yaml"], "poll: must be at least 0.02 (found 0)"),
        (["--node", "--config", "nowhere.yaml"], "cgroupRoot: /nowhere is no directory"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text("poll: 0")
    Path("nowhere.yaml").write_text("cgroupRoot: /nowhere")
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, told in result.output) == (2, True), result.output


def test_the_command_line_shows_a_tree(tmp_path: Path) -> None:
    made_pod(tmp_path)
    arguments = ["--node", "--once", "--output", "json", "--cgroup-root", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert [each["uid"] for each in json.loads(result.output)["pods"]] == [UID]
