"""The demo's scene: room for the growth that it wants to show, and files that the programs may read at any time."""

import json
from pathlib import Path

import pytest

from parley import scene as scenes


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (2, 2), (3, 3), (64, 4)])
def test_this_machine_can_grow_and_the_node_has_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, most: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    scene = scenes.make(tmp_path, 5, 1)
    vm = scene.vms[0]
    assert (vm.name, vm.min, vm.max, vm.most) == (scenes.THIS_MACHINE, 1, most, most + scenes.MORE_CPUS)
    big = next(each for each in scene.vms if each.name == "big-step")
    others = [each for each in scene.vms if each is not big]
    room = scene.reservable.vcpu_milli // 1000
    assert sum(each.most for each in others) + big.unit <= room  # its first step starves nobody
    assert sum(each.min for each in others) + 2 * big.unit > room  # and its second never fits


def test_the_files_of_a_raised_scene_are_those_of_the_same_demo(tmp_path: Path) -> None:
    scene = scenes.make(tmp_path, 3, 1)
    assert scenes.vms_of_another(scene) is None
    for written in (scene, scenes.raised(scene)):
        scenes.write_files(written)
        assert scenes.vms_of_another(scene) is None
    raised = json.loads((tmp_path / "cluster.yaml").read_text())["vms"][0]["max"]["cpu"]
    assert raised == scene.vms[0].most
    assert [path.name for path in tmp_path.glob("*.new")] == []
    assert scenes.vms_of_another(scenes.make(tmp_path, 4, 1)) == 3
