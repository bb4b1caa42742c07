"""The configuration: all faults at once, shares read exactly, and a bad new file that changes nothing."""

import asyncio
import contextlib
import dataclasses
import gc
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from hosting import settings, watched_file
from hosting.settings import SettingsError
from hosting.watched_file import FileUnreachableError
from protocol.values import ZERO, Resources
from scheduler.permits.core.placeholders import PlaceholderRules
from scheduler.permits.core.rules import (
    DEFAULT_RULES,
    GrowthSwitches,
    NodeOverride,
    NodeRules,
    Rules,
    Watermark,
)
from scheduler.permits.service import config_file
from scheduler.permits.service.config_file import (
    NODE_POOL_LABELS,
    Config,
    ConfigFile,
    model_of,
    read_configuration,
    rules_of,
)

GIB = 2**30
EXAMPLE = Path(__file__).parents[3] / "examples" / "scheduler.yaml"
WHOLE = """
nodeDefaults:
  system: {cpu: 500m, memory: 512Mi}
  watermark: 0.7
  computeUnit: {cpu: 1, memory: 1Gi}
nodeOverrides:
- nodes: [big-1, "gpu-*"]
  watermark: {cpu: 0.9, memory: 1}
- nodes: [big-1]
  system: {cpu: 0, memory: 0}
  computeUnit: {cpu: 2, memory: 8Gi}
growth:
  stop: true
  recommendOnly: true
  recommendOnlyNamespaces: ["ci-*", test]
  recommendOnlyVms: ["default/db-*"]
migration:
  enabled: true
"""


def read(text: str) -> Rules:
    return rules_of(settings.parse(Path("s.yaml"), text.encode(), Config))


def faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text)
    return caught.value.faults


# ------------------------------------------------------------ what a file says


def test_a_whole_file_becomes_rules() -> None:
    assert read(WHOLE) == Rules(
        NodeRules(Resources(500, GIB // 2), Watermark(700_000, 700_000), Resources(1000, GIB)),
        (
            NodeOverride(("big-1", "gpu-*"), watermark=Watermark(900_000, 1_000_000)),
            NodeOverride(("big-1",), system=ZERO, compute_unit=Resources(2000, 8 * GIB)),
        ),
        GrowthSwitches(True, True, ("ci-*", "test"), ("default/db-*",)),
        migration_enabled=True,
    )


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "{}", "nodeDefaults: {}\nnodeOverrides: []\ngrowth: {}\nmigration: {}\n"]
)
def test_what_is_left_out_is_as_in_the_default_rules(text: str) -> None:
    assert read(text) == DEFAULT_RULES
    system = "nodeDefaults: {system: {cpu: 1, memory: 1}}"
    assert read(system).node == dataclasses.replace(DEFAULT_RULES.node, system=Resources(1000, 1))


async def test_the_example_is_right() -> None:
    configuration = await ConfigFile(EXAMPLE, migrator_present=False).refresh()
    assert configuration is not None
    rules = configuration.rules
    assert rules.for_node("gpu-1").watermark == Watermark(900_000, 850_000)
    assert rules.is_recommend_only("ci-1", "any")


# ------------------------------------------------------------ shares


@pytest.mark.parametrize(
    ("text", "ppm"),
    [
        ("0.7", 700_000),
        ("1", 1_000_000),
        ("1.0", 1_000_000),
        (".5", 500_000),
        ("0.000001", 1),
        ("0.999999", 999_999),
        ("0.100000", 100_000),
        ("0.57", 570_000),
        ("0.290000", 290_000),
        ("1.0e-6", 1),
    ],
)
def test_a_share_is_read_exactly(text: str, ppm: int) -> None:
    assert read(f"nodeDefaults: {{watermark: {text}}}").node.watermark == Watermark(ppm, ppm)


def test_no_share_of_six_decimals_suffers_from_floats() -> None:
    assert [config_file._ppm(ppm / 1_000_000) for ppm in range(1, 1_000_001, 7)] == list(
        range(1, 1_000_001, 7)
    )


NO_SHARES = [
    "0",
    "0.0",
    "-0.1",
    "1.1",
    "1.000001",
    "2",
    "0.1234567",
    "0.0000001",
    "1.0e-300",
    ".inf",
    ".nan",
    "70%",
]
NO_SHARES += ["'0.7'", "true", "false", "[0.7]", "null_", "9" * 400, "2001-01-01"]


@pytest.mark.parametrize("text", NO_SHARES)
def test_what_is_no_share_is_one_fault_that_says_what_would_be_right(text: str) -> None:
    rule = "must be a number above 0 and at most 1 with at most six decimals, such as 0.7"
    (fault,) = faults(f"nodeDefaults: {{watermark: {text}}}")
    assert fault.startswith(
        f"nodeDefaults.watermark: {rule}, or one for each, such as {{cpu: 0.7, memory: 0.8}}"
    )
    (fault,) = faults(f"nodeDefaults: {{watermark: {{cpu: 0.7, memory: {text}}}}}")
    assert fault.startswith(f"nodeDefaults.watermark.memory: {rule}")


# ------------------------------------------------------------ globs

HOPELESS = ["gpu-[z-a]", "gpu-[", "gpu-[0-9", "a b", "a\\tb"]
GLOBS = ["*", "gpu-*", "gpu-[0-9]", "[!a]*", "[]]", "[]a]b", "big-1", "?", "[a-z][0-9]"]


@pytest.mark.parametrize("glob", [*HOPELESS, "a/b", "*/*"])
def test_a_glob_that_can_match_no_node_is_a_fault(glob: str) -> None:
    (fault,) = faults(f'nodeOverrides: [{{nodes: ["{glob}"], watermark: 0.5}}]')
    assert fault.startswith("nodeOverrides[0].nodes[0]: can match nothing: ")


@pytest.mark.parametrize("glob", HOPELESS)
def test_a_glob_that_can_match_no_namespace_or_vm_is_a_fault(glob: str) -> None:
    (fault,) = faults(f'growth: {{recommendOnlyNamespaces: ["{glob}"]}}')
    assert fault.startswith("growth.recommendOnlyNamespaces[0]: can match nothing: ")
    (fault,) = faults(f'growth: {{recommendOnlyVms: ["d/{glob}"]}}')
    assert fault.startswith("growth.recommendOnlyVms[0]: can match nothing: ")
    (fault,) = faults('growth: {recommendOnlyVms: ["a/b/c"]}')
    assert fault.startswith("growth.recommendOnlyVms[0]: can match nothing: ")


@pytest.mark.parametrize("glob", GLOBS)
def test_a_glob_that_can_match_is_taken(glob: str) -> None:
    assert read(f'nodeOverrides: [{{nodes: ["{glob}"], watermark: 0.5}}]').overrides[0].nodes == (glob,)
    assert read(f'growth: {{recommendOnlyVms: ["d/{glob}"]}}').growth.recommend_only_vms == (f"d/{glob}",)


# ------------------------------------------------------------ faults

FAULTY = f"""
nodeDefaults:
  system: {{cpu: -1, memory: lots}}
  watermark: {{cpu: 1.5, memroy: 0.5}}
  computeUnit: {{cpu: 0, memory: 1Gi}}
nodeOverrides:
- nodes: []
  watermark: 70
- nodes: ["", a, a, 5, {"x" * 513}]
- watermark: 0.5
- nodes: [a]
  computeUnit: {{cpu: 1}}
  colour: red
- plain
growth:
  stop: maybe
  recommendOnly: [a]
  recommendOnlyNamespaces: ["", default/db-0, b, b]
  recommendOnlyVms: [db-0, /db-0, default/, "c/*", "c/*", "c/*"]
migration: {{enabled: 1}}
extra: 1
"""


def test_every_fault_is_told_at_once() -> None:
    found = faults(FAULTY)
    expected = (
        "nodeDefaults.system.cpu: must be CPUs in whole milli-CPU, 0 or more",
        "nodeDefaults.system.memory: 'lots' is not a quantity",
        "nodeDefaults.watermark.cpu: must be a number above 0 and at most 1",
        "nodeDefaults.watermark.memory: is required",
        "nodeDefaults.watermark.memroy: there is no such setting",
        "nodeDefaults.computeUnit: must be above zero in both resources, such as {cpu: 1, memory: 1Gi}, not 0 CPU / 1Gi",
        "nodeOverrides[0].nodes: must name at least one node, such as big-1 or gpu-*",
        "nodeOverrides[0].watermark: must be a number above 0 and at most 1",
        "nodeOverrides[1]: sets nothing; must have at least one of system, watermark and computeUnit",
        "nodeOverrides[1].nodes[0]: must be a name or a glob of 1 to 512 characters, such as big-1 or gpu-* (found '')",
        "nodeOverrides[1].nodes[3]: must be a text (found 5)",
        "nodeOverrides[1].nodes[4]: must be a name or a glob of 1 to 512 characters",
        "nodeOverrides[1].nodes: 'a' is given 2 times; once is enough",
        "nodeOverrides[2].nodes: is required",
        "nodeOverrides[3].computeUnit.memory: is required",
        "nodeOverrides[3].colour: there is no such setting",
        "nodeOverrides[4]: must be a mapping (found 'plain')",
        "growth.stop: must be true or false (found 'maybe')",
        "growth.recommendOnly: must be true or false",
        "growth.recommendOnlyNamespaces[0]: must be a namespace or a glob of 1 to 512 characters, such as ci-*",
        "growth.recommendOnlyNamespaces[1]: must be a namespace or a glob",
        "growth.recommendOnlyNamespaces: 'b' is given 2 times; once is enough",
        "growth.recommendOnlyVms[0]: must be a name or a glob of at most 512 characters for namespace/name",
        "growth.recommendOnlyVms[1]: must be a name or a glob",
        "growth.recommendOnlyVms[2]: must be a name or a glob",
        "growth.recommendOnlyVms: 'c/*' is given 3 times; once is enough",
        "migration.enabled: must be true or false (found 1)",
        "extra: there is no such setting",
    )
    for start in expected:
        assert any(fault.startswith(start) for fault in found), (start, found)
    assert len(found) == len(expected), found


def many(count: int, text: str) -> str:
    return "[" + ", ".join(f'"{text}{number}"' for number in range(count)) + "]"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "nodeOverrides: [{nodes: [a], system: null}]",
            "nodeOverrides[0]: sets nothing; must have at least one of ",
        ),
        ("nodeOverrides: [{nodes: a, watermark: 1}]", "nodeOverrides[0].nodes: must be a list (found 'a')"),
        (
            "nodeOverrides: [{nodes: null, watermark: 1}]",
            "nodeOverrides[0].nodes: must be a list (found None)",
        ),
        ("nodeOverrides: {nodes: [a]}", "nodeOverrides: must be a list"),
        ("nodedefaults: {}", "nodedefaults: there is no such setting"),
        ("node_defaults: {}", "node_defaults: there is no such setting"),
        ("growth:", "growth: must be a mapping (found None)"),
        ("growth: {recommendOnlyVms: a/b}", "growth.recommendOnlyVms: must be a list (found 'a/b')"),
        ("growth: {stop: 1}", "growth.stop: must be true or false (found 1)"),
        ("growth: {stop: 'yes'}", "growth.stop: must be true or false (found 'yes')"),
        ("migration: true", "migration: must be a mapping (found True)"),
        (
            "nodeOverrides: [[a], 5, {nodes: {a: b}}, {nodes: [[a], {b: c}]}]",
            "nodeOverrides[0]: must be a mapping",
        ),
        ("growth: [a]\nnodeOverrides: a\nmigration: [enabled]", "nodeOverrides: must be a list"),
        ("nodeDefaults: 5\ngrowth: {recommendOnlyVms: [[a]]}", "nodeDefaults: must be a mapping"),
        (
            f"nodeOverrides: [{{nodes: {many(201, 'a*')}, watermark: 1}}]",
            "(file): must hold at most 200 globs in all, not 201; names without *, ? and [ are no globs",
        ),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, fault: str) -> None:
    assert faults(text)[0].startswith(fault)


def test_there_may_be_many_names_but_not_many_overrides() -> None:
    override = f"{{nodes: {many(1000, 'node-')}, watermark: 1}}"
    assert len(read(f"nodeOverrides: [{override}]").overrides[0].nodes) == 1000
    (fault,) = faults(f"nodeOverrides: [{', '.join(['{nodes: [a], watermark: 1}'] * 257)}]")
    assert fault == "nodeOverrides: must be at most 256, not 257; one override may name many nodes"


@pytest.mark.parametrize("text", ["[", "- ", "? ", "{a: "])
def test_a_file_that_nests_without_end_is_a_fault_and_no_crash(text: str) -> None:
    """The parser in C recurses without regard for the stack, where nobody counts."""
    assert faults(text * 1_000_000) == ["not valid YAML: lists and mappings nest deeper than 100"]


@pytest.mark.parametrize("text", ["growth: {stop: true}", "growth: [", "more: 1"])
def test_the_garbage_collector_is_on_again_after_a_file_was_read(text: str) -> None:
    assert gc.isenabled()
    with contextlib.suppress(SettingsError):
        read(text)
    assert gc.isenabled()


# ------------------------------------------------------------ reading again


class Written:
    """A configuration that is rewritten, and its reader."""

    def __init__(self, path: Path, migrator_present: bool = True) -> None:
        self.path = path
        self.file = ConfigFile(path, migrator_present)
        self._writes = 0

    def write(self, text: str) -> None:
        self._writes += 1
        self.path.write_text(text)
        os.utime(self.path, ns=(self._writes, self._writes))

    async def refresh(self, text: str | None = None) -> Rules | None:
        if text is not None:
            self.write(text)
        read = await self.file.refresh()
        return read.rules if read is not None else None


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "scheduler.yaml")


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    parsed = []

    def counted(path: Path, content: bytes, model: type[Config]) -> Config:
        parsed.append(content)
        return settings.parse(path, content, model)

    monkeypatch.setattr(watched_file, "parse", counted)
    return parsed


async def test_a_file_is_read_once_and_again_when_it_changes(written: Written, parses: list[bytes]) -> None:
    assert await written.refresh(WHOLE) == read(WHOLE)
    assert await written.refresh() is None
    assert await written.refresh() is None
    assert await written.refresh("growth: {stop: true}") == read("growth: {stop: true}")
    assert await written.refresh() is None
    assert len(parses) == 2


async def test_a_file_that_is_put_in_the_place_of_the_old_one_is_read(written: Written) -> None:
    """The same size and time of change, as `cp -p` and `mv` give them; the inode tells them apart."""
    await written.refresh("growth: {stop: true }")
    other = written.path.with_name("new")
    other.write_text("growth: {stop: false}")
    os.utime(other, ns=(1, 1))
    other.rename(written.path)
    assert await written.refresh() == DEFAULT_RULES


async def test_a_bad_new_file_is_told_until_it_changes_and_parsed_once(
    written: Written, parses: list[bytes]
) -> None:
    await written.refresh(WHOLE)
    written.write("growth: {stop: perhaps}\nmore: 1\n")
    told = []
    for _ in range(3):
        with pytest.raises(SettingsError) as caught:
            await written.refresh()
        told.append(caught.value)
    assert {str(error) for error in told} == {str(told[0])}
    assert len(set(map(id, told))) == 3, "an error that is raised again grows by a traceback each time"
    assert told[0].faults == [
        "growth.stop: must be true or false (found 'perhaps')",
        "more: there is no such setting",
    ]
    assert len(parses) == 2
    assert await written.refresh(WHOLE) == read(WHOLE)
    assert await written.refresh() is None


async def test_a_file_that_is_too_large_is_a_fault(written: Written, parses: list[bytes]) -> None:
    for _ in range(2):
        with pytest.raises(SettingsError, match="is larger than 4194304 bytes"):
            await written.refresh("#" * (settings.MAX_FILE_BYTES + 1))
    assert await written.refresh("#" * settings.MAX_FILE_BYTES) == DEFAULT_RULES
    assert len(parses) == 1


Break = Callable[[Written, pytest.MonkeyPatch], None]


def away(written: Written, _: pytest.MonkeyPatch) -> None:
    written.path.unlink()


def a_directory(written: Written, _: pytest.MonkeyPatch) -> None:
    written.path.unlink()
    written.path.mkdir()


def stuck(_: Written, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(watched_file, "READ_DEADLINE_S", 0.0)


UNREACHABLE: dict[str, tuple[Break, str]] = {
    "away": (away, r"scheduler\.yaml cannot be read: No such file"),
    "a directory": (a_directory, "cannot be read: Is a directory"),
    "stuck": (stuck, "could not be read in time"),
}


@pytest.mark.parametrize(("broken", "told"), UNREACHABLE.values(), ids=UNREACHABLE)
@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
async def test_a_file_that_cannot_be_read_is_unreachable_and_may_come_back(
    written: Written, is_bad: bool, broken: Break, told: str
) -> None:
    """The earlier content stays in force: its rules, or its faults."""
    text = "more: 1" if is_bad else WHOLE
    for _ in range(2):
        with pytest.raises(SettingsError) if is_bad else contextlib.nullcontext():
            await written.refresh(text)
    kept = written.path.with_name("kept")
    kept.hardlink_to(written.path)
    with pytest.MonkeyPatch.context() as patched:
        broken(written, patched)
        for _ in range(2):
            with pytest.raises(FileUnreachableError, match=told):
                await written.refresh()
    if written.path.is_dir():
        written.path.rmdir()
    kept.replace(written.path)
    if is_bad:
        with pytest.raises(SettingsError, match="no such setting"):
            await written.refresh()
        assert await written.refresh("") == DEFAULT_RULES
    else:
        assert await written.refresh() is None, "it is the file whose rules are in force"
        assert await written.refresh("") == DEFAULT_RULES


async def test_what_was_written_while_the_file_could_not_be_read_is_read_when_it_can_be(
    written: Written,
) -> None:
    await written.refresh("")
    written.write(WHOLE)
    fault = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    with mock.patch.object(watched_file, "_content_of", fault):
        for _ in range(2):
            with pytest.raises(FileUnreachableError, match="cannot be read: Permission denied"):
                await written.refresh()
    assert await written.refresh() == read(WHOLE)


async def test_reads_at_the_same_time_follow_one_another(written: Written, parses: list[bytes]) -> None:
    written.write(WHOLE)
    found = await asyncio.gather(*(written.refresh() for _ in range(3)))
    assert found == [read(WHOLE), None, None]
    assert len(parses) == 1


# ------------------------------------------------------------ migration


async def test_migration_needs_something_that_can_migrate(tmp_path: Path) -> None:
    written = Written(tmp_path / "s.yaml", migrator_present=False)
    with pytest.raises(SettingsError) as caught:
        await written.refresh("migration: {enabled: true}\nmore: 1\n")
    assert caught.value.faults == [
        "more: there is no such setting",
        "migration.enabled: must be false (found True): this scheduler has nothing that can migrate VMs",
    ]
    assert await written.refresh("migration: {enabled: false}") == DEFAULT_RULES
    rules = await Written(tmp_path / "other.yaml").refresh("migration: {enabled: true}")
    assert rules is not None
    assert rules.migration_enabled
    for text in ("migration: [enabled]", "migration: {enabled: 1}", "- a"):
        with pytest.raises(SettingsError) as caught:
            await written.refresh(text)
        assert len(caught.value.faults) == 1


def placeholders(text: str) -> PlaceholderRules | None:
    return read_configuration(Path("s.yaml"), text.encode(), Config).placeholders


def test_placeholders_are_off_and_their_settings_have_defaults() -> None:
    assert placeholders("growth: {}") is None
    found = placeholders("placeholder: {}")
    assert found is not None
    assert (found.after_s, found.most_pods, found.labels) == (30.0, 5, NODE_POOL_LABELS)
    assert (found.most, found.step) == (Resources(4000, 16 * GIB), Resources(500, GIB // 2))
    assert found.priority_class == "parley-placeholder"


def test_the_settings_of_placeholders_are_read() -> None:
    found = placeholders("""
placeholder:
  after: 60
  nodePoolLabels: [pool]
  priorityClass: low
  mostPods: 2
  most: {cpu: 1, memory: 1Gi}
  step: {cpu: 100m, memory: 128Mi}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: placeholder, image: mine}]}}
""")
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {}},
        "spec": {"containers": [{"name": "placeholder", "image": "mine"}]},
    }
    step = Resources(100, 128 * 2**20)
    assert found == PlaceholderRules(60, ("pool",), "low", 2, Resources(1000, GIB), step, template)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{after: 0}", "placeholder.after"),
        ("{nodePoolLabels: []}", "placeholder.nodePoolLabels"),
        ("{mostPods: 0}", "placeholder.mostPods"),
        ("{step: {cpu: 0, memory: 1Gi}}", "placeholder.step"),
        ("{template: {status: {}}}", "placeholder.template.status"),
        ("{template: {spec: {containers: main}}}", "placeholder.template.spec: containers must be a list"),
        ("{template: {spec: {containers: [{image: x}]}}}", "placeholder.template.spec: containers must be"),
    ],
)
def test_a_fault_of_placeholders_is_told_with_its_place(text: str, fault: str) -> None:
    (found,) = faults(f"placeholder: {text}")
    assert found.startswith(fault)


def test_placeholders_need_kubernetes() -> None:
    with pytest.raises(SettingsError) as caught:
        read_configuration(Path("s.yaml"), b"placeholder: {}", model_of(migrator_present=False))
    assert caught.value.faults == [
        "placeholder: must be left out: this scheduler's cluster is not Kubernetes"
    ]
