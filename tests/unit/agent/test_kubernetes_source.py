"""A source over stores remembers each VM that it has told as it was before a typo."""

from dataclasses import dataclass, field

import pytest

from agent.core.ports import VmDescribed, VmRemoved
from agent.daemon import annotations, policies
from agent.sources.described import AgentChecks
from agent.sources.kubernetes import KubernetesSource, Stores
from hosting.kubernetes.names import BOUNDS, CONFIG
from hosting.kubernetes.resources import Manifest
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.virtual_time import virtually

GOOD = {BOUNDS: '{"max": {"memory": "2Gi"}}', CONFIG: '{"policies": ["pressure"]}'}


@dataclass
class Kept:
    """A store as a reflector keeps it."""

    kept: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    fault: str = ""

    def objects(self) -> dict[tuple[str, str], Manifest]:
        return self.kept

    async def synced(self) -> None:
        """It is full from the start."""


def source_of(pods: Kept, policies_: Kept | None = None) -> KubernetesSource:
    node = Kept({("", "node-1"): node_manifest("node-1", "16", "64Gi")})
    known = AgentChecks(of_pods=annotations.checks(policies.standard(()), ("utilisation",)))
    return KubernetesSource(
        "node-1", Stores(pods, node, policies_ or Kept()), "http://127.0.0.1:1", lambda *_: {}, known
    )


@pytest.mark.parametrize(
    "typo",
    [{BOUNDS: '{"max": {"memory": "lots"}}'}, {CONFIG: '{"policies": ["presure"]}'}],
    ids=["bounds", "policies"],
)
def test_a_typo_changes_nothing_of_a_vm_until_the_agent_starts_anew(typo: dict[str, str]) -> None:
    @virtually
    async def story() -> None:
        pods = Kept({("default", "a"): pod_manifest("a", annotations=GOOD)})
        source = source_of(pods)
        (first,) = await source.changes()
        assert isinstance(first, VmDescribed)

        pods.kept[("default", "a")] = pod_manifest("a", annotations=GOOD | typo)
        pods.kept[("default", "b")] = pod_manifest("b")
        source.note_change()
        assert [each.spec.vm.name for each in await source.changes() if isinstance(each, VmDescribed)] == [
            "default/b"
        ]
        (name,) = typo
        assert source.found()["default/a"].faults[0].startswith(f"{name}: ")

        anew = source_of(pods)
        assert [each.spec.vm.name for each in await anew.changes() if isinstance(each, VmDescribed)] == [
            "default/b"
        ]
        assert name in anew.found()["default/a"].obstacles[0]

        pods.kept[("default", "a")] = pod_manifest("a", uid="another", annotations=GOOD | typo)
        source.note_change()
        assert await source.changes() == (VmRemoved("default/a"),), "what was valid was that of another pod"

    story()


def test_a_policy_that_cannot_be_read_is_a_fault_of_its_namespace_and_counts_as_it_was_read_last() -> None:
    def policy(name: str, spec: object) -> Manifest:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}

    @virtually
    async def story() -> None:
        selected = pod_manifest("a", labels={"app": "x"})
        pods = Kept({("default", "a"): selected, ("other", "b"): pod_manifest("b", namespace="other")})
        policies_ = Kept(
            {
                ("default", "p"): policy("p", {"selector": {"matchLabels": {"app": "x"}}}),
                ("default", "q"): policy("q", "odd"),
            }
        )
        source = source_of(pods, policies_)
        assert len(await source.changes()) == 2
        assert source.found()["default/a"].faults == (
            "ScalingPolicy q cannot be read: spec: must be a mapping",
        )
        assert source.found()["other/b"].faults == ()

        policies_.kept[("default", "p")] = policy("p", ["odd"])
        pods.kept[("other", "b")] = pod_manifest("b", namespace="other", labels={})
        source.note_change()
        assert await source.changes() == (VmRemoved("other/b"),)
        assert [text.partition(":")[0] for text in source.found()["default/a"].faults] == [
            "ScalingPolicy p cannot be read",
            "ScalingPolicy q cannot be read",
        ]

    story()
