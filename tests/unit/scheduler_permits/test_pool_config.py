"""The configuration describes plugins, and the cluster file pools and labels."""

from pathlib import Path

import pytest

from hosting import settings
from hosting.settings import SettingsError
from protocol.values import Resources
from scheduler.clusters.file import ClusterFile, FileCluster
from scheduler.permits.core import events
from scheduler.permits.core.rules import DefaultPool
from scheduler.permits.service.config_file import Config, rules_of
from scheduler.pools.chain.config import ChainConfig, Named
from scheduler.pools.core.admission_state import COOLDOWN_S
from scheduler.pools.core.values import Pool, PoolLimits
from tests.unit.scheduler_permits.test_cluster_file import NODE, vm

GIB = 2**30
UNIT = "computeUnit: {cpu: 1, memory: 1Gi}"
WHOLE = """
pools:
  cooldown: 90
  plugins:
  - name: quota
    args: {limit: 5, teams: [a, b]}
  - name: door
"""


def chain(text: str) -> ChainConfig:
    return settings.parse(Path("c.yaml"), text.encode(), Config).pools.config()


def faults(text: str, model: type[settings.Settings] = Config) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.parse(Path("c.yaml"), text.encode(), model)
    return caught.value.faults


# ------------------------------------------------------------ the configuration


def test_a_whole_chain() -> None:
    assert chain(WHOLE) == ChainConfig(
        (Named("quota", {"limit": 5, "teams": ["a", "b"]}), Named("door")),
        90.0,
    )


@pytest.mark.parametrize("text", ["", "pools: {}", "pools: {plugins: []}"])
def test_what_is_left_out_is_no_chain(text: str) -> None:
    assert chain(text) == ChainConfig(cooldown_s=COOLDOWN_S)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pools: []", "pools:"),
        ("pools: {plugins: {}}", "pools.plugins:"),
        ("pools: {plugins: [quota]}", "pools.plugins[0]:"),
        ("pools: {plugins: [{args: 1}]}", "pools.plugins[0].name:"),
        ("pools: {plugins: [{name: ''}]}", "pools.plugins[0].name:"),
        ("pools: {plugins: [{name: 7}]}", "pools.plugins[0].name:"),
        ("pools: {plugins: [{name: a, arg: 1}]}", "pools.plugins[0].arg:"),
        ("pools: {providers: {quota: {name: a}}}", "pools.providers:"),
        ("pools: {cooldown: 0}", "pools.cooldown:"),
        ("pools: {cooldown: 1e9}", "pools.cooldown:"),
        ("pools: {cooldown: .nan}", "pools.cooldown:"),
        ("pools: {cooldown: .inf}", "pools.cooldown:"),
        ("pools: {cooldown: '60'}", "pools.cooldown:"),
        ("pools: {cooldown: true}", "pools.cooldown:"),
    ],
)
def test_faults_of_the_chain_are_told_with_their_path(text: str, path: str) -> None:
    assert [fault for fault in faults(text) if fault.startswith(path)]


def test_faults_of_the_chain_and_of_the_rest_are_told_together() -> None:
    found = faults("pools: {cooldown: 0, plugins: [{name: ''}]}\ngrowth: {stop: 1}\n")
    assert [fault.split(":")[0] for fault in found] == [
        "growth.stop",
        "pools.plugins[0].name",
        "pools.cooldown",
    ]


def test_pools_of_vms_that_name_none() -> None:
    text = """
pools:
  defaults:
  - {pool: ci, namespaces: ["ci-*", test]}
  - {pool: dev, labels: {team: dev}}
"""
    read = rules_of(settings.parse(Path("s.yaml"), text.encode(), Config))
    assert read.default_pools == (
        DefaultPool("ci", ("ci-*", "test")),
        DefaultPool("dev", labels=(("team", "dev"),)),
    )
    assert read.default_pool("ci-1", (("team", "dev"),)) == "ci"
    assert read.default_pool("prod", (("team", "dev"), ("x", "y"))) == "dev"
    assert read.default_pool("prod", ()) is None


def test_faults_of_defaults_are_told_at_once() -> None:
    found = "\n".join(
        faults(
            "pools: {defaults: [{pool: ci}, {pool: CI, namespaces: [a/b, x, x]}, {labels: {a b: c}, pools: 1}]}",
            Config,
        )
    )
    for told in (
        "pools.defaults[0]: must have namespaces or labels",
        "pools.defaults[1].pool: must be",
        "pools.defaults[1].namespaces[0]: must be a namespace or a glob",
        "pools.defaults[1].namespaces: 'x' is given 2 times",
        "pools.defaults[2].pool: is required",
        "pools.defaults[2].pools: there is no such setting",
        "pools.defaults[2].labels.",
    ):
        assert told in found, (told, found)


# ------------------------------------------------------------ the cluster file


async def test_pools_and_labels_of_the_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    labels = "labels: {parley.dev/pool: bank, team: a}"
    path.write_text(
        NODE
        + "vms:\n"
        + vm("a", "u1", more=labels)
        + vm("b", "u2", more="labels: {parley.dev/pool: ''}")
        + vm("c", "u3")
        + f"pools:\n- {{name: bank, {UNIT}, limits: {{maxUnits: 9, maxUnitsPerVm: 2}}, "
        + "labels: {a: b}, annotations: {c: d}, finalizers: [x, y, x]}\n"
        + f"- {{name: other, {UNIT}}}\n"
    )
    cluster = FileCluster(path, lambda: 0.0, 0.0)
    changes = await cluster.refresh()
    specs = {each.vm.pod.name: each.vm for each in changes if isinstance(each, events.VmSeen)}
    assert {name: spec.pool for name, spec in specs.items()} == {"a": "bank", "b": None, "c": None}
    assert specs["a"].labels == (("parley.dev/pool", "bank"), ("team", "a"))
    bank = Pool("bank", Resources(1000, GIB), PoolLimits(9, 2), {"a": "b"}, {"c": "d"}, ("x", "y"))
    assert cluster.pools == {"bank": bank, "other": Pool("other", Resources(1000, GIB))}
    before = cluster.pools
    assert await cluster.refresh() == (events.ClusterRead(0.0),)
    assert cluster.pools is before, "another object tells another file"


async def test_a_vm_that_gets_another_label_is_told_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(NODE + "vms:\n" + vm("a", "u1", more="labels: {parley.dev/pool: bank}"))
    cluster = FileCluster(path, lambda: 0.0, 0.0)
    await cluster.refresh()
    path.write_text(NODE + "vms:\n" + vm("a", "u1", more="labels: {parley.dev/pool: another}"))
    change, _ = await cluster.refresh()
    assert isinstance(change, events.VmSeen)
    assert change.vm.pool == "another"


def test_all_faults_of_pools_are_told_at_once() -> None:
    found = "\n".join(
        faults(
            NODE
            + "vms:\n"
            + vm(more="labels: {a b: c, ok: 'not ok!'}")
            + f"pools:\n- {{name: bank, {UNIT}}}\n- {{name: bank, {UNIT}}}\n"
            + "- {name: FakePools, computeUnit: {cpu: 0, memory: 1Gi}, limits: {maxUnits: -1}, generation: 3}\n- {}\n",
            ClusterFile,
        )
    )
    for told in (
        "vms[0].labels.",
        "pools[0].name: pool name 'bank' is used more than once",
        "pools[1].name: pool name 'bank' is used more than once",
        "pools[2].name: must be",
        "pools[2].computeUnit: must be above zero",
        "pools[2].limits.maxUnits:",
        "pools[2].generation: there is no such setting",
        "pools[3].name: is required",
        "pools[3].computeUnit: is required",
    ):
        assert told in found, told


async def test_a_file_with_faults_leaves_the_pools_of_before(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{NODE}pools:\n- {{name: bank, {UNIT}}}\n")
    cluster = FileCluster(path, lambda: 0.0, 0.0)
    await cluster.refresh()
    path.write_text(f"{NODE}pools:\n- {{name: FakePools, {UNIT}}}\n")
    with pytest.raises(SettingsError):
        await cluster.refresh()
    assert set(cluster.pools) == {"bank"}
