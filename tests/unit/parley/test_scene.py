"""The demo's scene: room for the growth that it wants to show, and files that the programs may read at any time."""

import json
from pathlib import Path

import pytest

from parley import scene as scenes
from tests.support.amounts import cu


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_this_machine_can_grow_and_the_node_has_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, most: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    scene = scenes.make(tmp_path, 5, 1, 100.0)
    vm = scene.vms[0]
    assert (vm.name, vm.min, vm.max) == (scenes.THIS_MACHINE, cu(1), cu(most))
    assert vm.most == scenes.amount(most + scenes.MORE_CPUS, most)
    big = next(each for each in scene.vms if each.name == "big-step")
    others = [each for each in scene.vms if each is not big]
    room, unit = scene.reservable.vcpu_milli, big.unit.step.vcpu_milli
    assert 1000 * sum(each.share for each in others) + unit <= room  # its first step starves nobody
    assert sum(each.min.vcpu_milli for each in others) + 2 * unit > room  # and its second never fits


@pytest.mark.parametrize("vms", [3, 5, 64])
def test_each_heavy_vm_takes_all_that_the_others_leave_when_they_are_smallest(
    tmp_path: Path, vms: int
) -> None:
    scene = scenes.make(tmp_path, vms, 1, 100.0)
    for name, of in ((scenes.CPU_HEAVY, "cpu"), (scenes.MEMORY_HEAVY, "memory")):
        taken = [dict((vm.max if vm.name == name else vm.min).named())[of] for vm in scene.vms]
        assert sum(taken) == dict(scene.reservable.named())[of]
    assert {vm.name for vm in scene.vms if not vm.unit.is_apart} <= {"big-step"}


def test_the_files_of_a_raised_scene_are_those_of_the_same_demo(tmp_path: Path) -> None:
    scene = scenes.make(tmp_path, 3, 1, 100.0)
    assert scenes.vms_of_another(scene) is None
    for written in (scene, scenes.raised(scene)):
        scenes.write_files(written)
        assert scenes.vms_of_another(scene) is None
    raised = json.loads((tmp_path / "cluster.yaml").read_text())["vms"][0]["max"]["cpu"]
    assert raised == scene.vms[0].most.written()["cpu"]
    assert [path.name for path in tmp_path.glob("*.new")] == []
    assert scenes.vms_of_another(scenes.make(tmp_path, 4, 1, 100.0)) == 3
