"""The ledger takes a pod as a VM, or as another pod that holds some amount."""

from dataclasses import replace
from typing import Any

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.koordinator import RESOURCE_STATUS
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import DEFAULT_MIN, DEFAULT_STEP, ScalingPolicy
from hosting.kubernetes.virtual_machines import VirtualMachine
from protocol.values import Bounds, Resources
from scheduler.clusters.kubernetes import reading
from scheduler.clusters.kubernetes.reading import FoundPod, FoundVm, PodContext
from scheduler.permits.core.model import Migration
from tests.support.amounts import cu
from tests.unit.scheduler_clusters.kube_manifests import bounds, machine, node, pod, policy

ROOM = cu(4, 16)
_IN_VM = {names.NEON_VM_NAME: "vm"}


def _around(vm: Manifest | None = None, name: str | None = None, *policies: Manifest) -> PodContext:
    read = [ScalingPolicy.read(each) for each in policies]
    return PodContext(ROOM, read, name, VirtualMachine.read(vm) if vm is not None else None)


@pytest.mark.parametrize(
    ("manifest", "around", "held", "is_terminal"),
    [
        pytest.param(pod(), _around(), cu(0.5, 1), False, id="requests"),
        pytest.param(pod(phase="Pending"), _around(), cu(0.5, 1), False, id="pending with a node"),
        pytest.param(pod(phase="Failed", scaled=False), _around(), cu(0.5, 1), True, id="ended"),
        pytest.param(
            pod(scaled=True, annotations={"kubernetes.io/config.mirror": "x"}),
            _around(),
            cu(0.5, 1),
            False,
            id="a static pod cannot be scaled",
        ),
        pytest.param(pod(labels=_IN_VM), _around(None, "vm"), cu(0.5, 1), False, id="a VM that is not there"),
        pytest.param(
            pod(labels=_IN_VM),
            _around(machine(is_enabled=False), "vm"),
            cu(2),
            False,
            id="a VM that is not scaled holds the larger of size and target",
        ),
        pytest.param(
            pod(labels=_IN_VM), _around(machine(pod_name="b"), "vm"), cu(2), False, id="a VM moves there"
        ),
        pytest.param(
            pod(labels={names.ENABLED: "false"}),
            _around(None, None, policy()),
            cu(0.5, 1),
            False,
            id="kept out of a policy",
        ),
    ],
)
def test_other_pods_hold_what_kube_scheduler_counts(
    manifest: Manifest, around: PodContext, held: Resources, is_terminal: bool
) -> None:
    found = reading.describe(manifest, around).found

    assert isinstance(found, FoundPod)
    assert (found.spec.requests, found.spec.terminal, found.spec.node) == (held, is_terminal, "n1")


@pytest.mark.parametrize(
    ("globs", "name", "is_served"),
    [
        ((), None, False),
        (("m*",), None, False),
        (("n*",), None, True),
        (("*",), "x", True),
        (("*",), "y", False),
    ],
)
def test_published_agents_serve_the_vms_of_their_schedulers_name(
    globs: tuple[str, ...], name: str | None, is_served: bool
) -> None:
    made = machine()
    vm = VirtualMachine.read({**made, "spec": made["spec"] | {"schedulerName": "x"}})
    assert reading.is_served_by_published(globs, name, vm, "n1") is is_served


@pytest.mark.parametrize(("word", "is_vm"), [("", True), ("false", False)])
def test_a_vm_that_says_no_is_served_by_nobody(word: str, is_vm: bool) -> None:
    made = machine(is_enabled=False, labels={names.NEON_ENABLED: word} if word else {})
    around = replace(_around(made, "vm"), is_served=True)
    found = reading.describe(pod(labels=_IN_VM), around).found
    assert isinstance(found, FoundPod) is not is_vm


_CI = {names.POOL: "ci"}


@pytest.mark.parametrize(
    ("manifest", "around", "pool"),
    [
        (pod(labels=_CI), _around(), "ci"),
        (pod(labels={**_CI, names.ENABLED: "false"}), _around(None, None, policy(pool="web")), "ci"),
        (pod(labels={names.ENABLED: "false"}), _around(None, None, policy(pool="web")), "web"),
        (pod(), _around(None, None, policy(pool="web", enabled=False)), None),
        (pod(scaled=True, labels=_CI, os={"name": "windows"}), _around(), "ci"),
        (pod(), _around(), None),
        (pod(labels=_IN_VM), _around(machine(is_enabled=False, labels=_CI), "vm"), "ci"),
        (pod(labels={**_IN_VM, **_CI}), _around(machine(pod_name="b", labels=_CI), "vm"), None),
    ],
    ids=["label", "label, not scaled", "policy, not scaled", "policy that is off", "not scalable", "none",
         "VM that is not scaled", "where a VM arrives"],
)  # fmt: skip
def test_a_pod_that_is_not_scaled_belongs_to_its_pool_all_the_same(
    manifest: Manifest, around: PodContext, pool: str | None
) -> None:
    found = reading.describe(manifest, around).found

    assert isinstance(found, FoundPod)
    assert found.spec.pool == pool


@pytest.mark.parametrize(
    ("manifest", "around", "expected"),
    [
        pytest.param(
            pod(scaled=True),
            _around(),
            {"bounds": Bounds(DEFAULT_MIN, ROOM), "step": DEFAULT_STEP, "migration": Migration.NEVER},
            id="by its label, up to the node's room",
        ),
        pytest.param(
            pod(annotations=bounds({"cpu": 1, "memory": "1Gi"}, {"cpu": 2, "memory": "2Gi"}), scaled=True),
            _around(),
            {"bounds": Bounds(cu(1), cu(2))},
            id="by its own bounds",
        ),
        pytest.param(
            pod(),
            _around(None, None, policy(pool="ci", tied=True)),
            {"pool": "ci", "is_tied": True},
            id="by a policy",
        ),
        pytest.param(
            pod(scaled=True, phase="Succeeded"), _around(), {"terminal": True}, id="one that has ended"
        ),
        pytest.param(
            pod(labels=_IN_VM),
            _around(machine(), "vm"),
            {"bounds": Bounds(cu(1), cu(4)), "step": None, "slot_bytes": 2**30, "is_tied": True},
            id="by its VirtualMachine",
        ),
        pytest.param(
            pod(labels=_IN_VM),
            _around(machine(annotations={names.UNIT: '{"cpu": "500m"}'}), "vm"),
            {"step": Resources(500, 2**30)},
            id="with steps of its own",
        ),
    ],
)
def test_scaled_pods_are_vms(manifest: Manifest, around: PodContext, expected: dict[str, Any]) -> None:
    found = reading.describe(manifest, around).found

    assert isinstance(found, FoundVm)
    shown = {name: getattr(found.spec, "compute_unit" if name == "step" else name) for name in expected}
    assert shown == expected


def test_size_and_target_of_a_vm_are_those_of_its_virtual_machine() -> None:
    found = reading.describe(pod(labels=_IN_VM), _around(machine(use=3), "vm")).found

    assert isinstance(found, FoundVm)
    assert (found.size, found.target) == (cu(1), cu(3))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(pod(cpu="many"), id="a quantity"),
        pytest.param(
            {**pod(), "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": "x"}]}}, id="shape"
        ),
        pytest.param({**pod(scaled=True), "spec": {"nodeName": "n1", "containers": "none"}}, id="type"),
    ],
)
def test_what_cannot_be_read_is_told(broken: Manifest) -> None:
    with pytest.raises(reading.MALFORMED):
        reading.describe(broken, _around())

    assert reading.unreadable(broken, ROOM).spec.requests == ROOM


def test_a_node_offers_what_can_be_allocated() -> None:
    assert reading.node_of(node()).allocatable == ROOM
    with pytest.raises(reading.MALFORMED):
        reading.node_of(node(cpu="many"))


@pytest.mark.parametrize(
    ("manifest", "around"),
    [
        (pod(annotations={names.RESERVATION: "r"}), _around()),
        (pod(scaled=True, annotations={names.RESERVATION: "r"}), _around()),
        (pod("a", labels=_IN_VM, annotations={names.RESERVATION: "r"}), _around(machine(), "vm")),
    ],
    ids=["pod", "scaled pod", "pod of a VM"],
)
def test_a_pod_names_the_reservation_that_it_was_bound_with(manifest: Manifest, around: PodContext) -> None:
    assert reading.describe(manifest, around).found.spec.reservation == "r"


@pytest.mark.parametrize(
    ("cpuset", "most", "declared"),
    [("0-2", 3000, 4000), ("0-3", 4000, None), ("0-7", 4000, None), ("", 4000, None), ("0-", 4000, None)],
)
def test_the_bounds_of_a_pod_end_at_cpus_of_its_own(cpuset: str, most: int, declared: int | None) -> None:
    manifest = pod(scaled=True, annotations={RESOURCE_STATUS: f'{{"cpuset": "{cpuset}"}}'})
    found = reading.describe(manifest, _around()).found
    assert isinstance(found, FoundVm)
    bounds = Bounds(DEFAULT_MIN, Resources(most, ROOM.memory_bytes))
    assert (found.spec.bounds, found.spec.declared_vcpu_milli) == (bounds, declared)
