"""Finding a pod in the cgroup tree: the layouts of both drivers below any root, in both versions, and names that are no UID."""

from pathlib import Path
from typing import Final

import pytest

from hosting.cgroups.tree import CgroupTree, PodGroup
from tests.unit.informant.pod_trees import UID, made_pod

WITH_UNDERSCORES: Final = UID.replace("-", "_")
STATIC: Final = "0123456789abcdef0123456789abcdef"
LAYOUTS: Final = {
    "cgroupfs, guaranteed": f"kubepods/pod{UID}",
    "cgroupfs, burstable": f"kubepods/burstable/pod{UID}",
    "cgroupfs, best effort": f"kubepods/besteffort/pod{UID}",
    "cgroupfs below a root": f"realkubelet/kubepods/burstable/pod{UID}",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{WITH_UNDERSCORES}.slice",
    "systemd, burstable": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{WITH_UNDERSCORES}.slice",
    "systemd, best effort": f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{WITH_UNDERSCORES}.slice",
    "systemd below a root": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{WITH_UNDERSCORES}.slice"
    ),
}


@pytest.mark.parametrize("is_v2", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize("path", LAYOUTS.values(), ids=LAYOUTS)
def test_a_pod_is_found_wherever_its_kubelet_keeps_it(path: str, is_v2: bool, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir() if not is_v2 else None
    tree = CgroupTree(tmp_path)
    assert tree.find(UID) is None
    made_pod(tmp_path, is_v2=is_v2, path=path)  # the kubelet began later than we
    at = {name: tmp_path if is_v2 else tmp_path / name for name in ("cpu", "cpuacct", "memory")}
    found = tree.find(UID)
    assert found == PodGroup(at["cpu"] / path, at["cpuacct"] / path, at["memory"] / path, is_v2)
    assert found.containers() == ("app",)
    assert tree.pods() == {UID: found}


def test_controllers_that_are_mounted_together_are_found(tmp_path: Path) -> None:
    made_pod(tmp_path, is_v2=False)
    (tmp_path / "cpu").rename(tmp_path / "cpu,cpuacct")
    found = CgroupTree(tmp_path).find(UID)
    assert found is not None
    assert found.cpu.is_relative_to(tmp_path / "cpu,cpuacct")


def test_a_static_pod_goes_by_the_hash_of_its_manifest(tmp_path: Path) -> None:
    made_pod(tmp_path, uid=STATIC)
    made_pod(tmp_path, uid=UID)
    tree = CgroupTree(tmp_path)
    assert tree.find(STATIC) is not None
    assert set(tree.pods()) == {STATIC, UID}


@pytest.mark.parametrize(
    "uid",
    ["", ".", "..", "*", f"{UID}/..", f"../pod{UID}", UID.upper(), UID[:-1], f"{UID}\n", f"{UID}/app", "app"],
)
def test_a_text_that_is_no_uid_is_looked_for_nowhere(uid: str, tmp_path: Path) -> None:
    made_pod(tmp_path)
    (tmp_path / "kubepods" / f"pod{UID.upper()}").mkdir()
    assert CgroupTree(tmp_path).find(uid) is None


def test_a_link_is_not_followed_out_of_the_tree(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    made_pod(elsewhere)
    root = tmp_path / "root"
    root.mkdir()
    (root / "kubepods").symlink_to(elsewhere / "kubepods")
    assert CgroupTree(root).find(UID) is None


def test_a_tree_that_is_not_there_has_no_pods(tmp_path: Path) -> None:
    tree = CgroupTree(tmp_path / "nowhere")
    assert (tree.find(UID), tree.pods()) == (None, {})
