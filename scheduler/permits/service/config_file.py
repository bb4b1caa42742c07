"""The scheduler's configuration: `--config FILE`. It is read again whenever it changes.

A new file with faults is reported with all of them, and the rules that were read before stay in force. The one who
writes the file should put a new one in its place (rename), so that no half of it is ever read.
"""

import fnmatch
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from hosting import logs
from hosting.amounts import PositiveResources, Resources, millionths
from hosting.settings import Settings, listed, parse
from hosting.watched_file import WatchedFile
from protocol import values
from scheduler.permits.core import rules
from scheduler.permits.core.placeholders import PlaceholderRules
from scheduler.placing.core.profile import Profile
from scheduler.placing.plugins.registry import SchedulingEntry
from scheduler.pools.chain import config
from scheduler.pools.core.admission_state import COOLDOWN_S
from scheduler.pools.entry import Labels, PoolName

MAX_OVERRIDES: Final = 256
MAX_GLOBS: Final = 200
"""In the whole file. Python keeps 256 compiled globs; with more, each match would compile its glob again."""
MAX_DEFAULTS: Final = 64
MAX_NAME: Final = 512
NODE_POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)
"""The labels by which Karpenter, GKE, EKS and AKS name the pool of a node."""
_BRACKETS: Final = re.compile(r"\[!?\]?[^\]]*\]")

_SHARE_RULE: Final = "a number above 0 and at most 1 with at most six decimals, such as 0.7"


def _ppm(value: object) -> int | None:
    """A share in parts per million; None for what is none."""
    ppm = millionths(value)
    return ppm if ppm is not None and 0 < ppm <= 1_000_000 else None


def _share(value: object) -> int:
    ppm = _ppm(value)
    if ppm is None:
        raise ValueError(f"must be {_SHARE_RULE}")
    return ppm


Share = Annotated[int, BeforeValidator(_share)]
"""Parts per million, written as a fraction."""


class _Shares(Settings):
    cpu: Share
    memory: Share


class _WrittenAsShares:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def convert(value: Any, read: core_schema.ValidatorFunctionWrapHandler) -> rules.Watermark:
            if isinstance(value, dict):
                shares: _Shares = read(value)
                return rules.Watermark(shares.cpu, shares.memory)
            ppm = _ppm(value)
            if ppm is None:
                raise ValueError(f"must be {_SHARE_RULE}, or one for each, such as {{cpu: 0.7, memory: 0.8}}")
            return rules.Watermark(ppm, ppm)

        return core_schema.no_info_wrap_validator_function(convert, handler(_Shares))


def _could_match(value: str, parts: int = 1) -> bool:
    """Whether a name or glob can match any name of so many parts, none of which holds / or blanks."""
    literal = _BRACKETS.sub("", value)
    is_hopeless = "(?!)" in fnmatch.translate(value)  # of an empty range, such as [z-a]
    is_open = "[" in literal  # a bracket that nobody closes stands for itself
    return (
        not (is_hopeless or is_open)
        and literal.count("/") < parts
        and " " not in literal
        and value.isprintable()
    )


_HOPELESS: Final = (
    "can match nothing: must have brackets that are closed and not empty, and no blank, such as {}"
)


def _name(value: str) -> str:
    if not 1 <= len(value) <= MAX_NAME:
        raise ValueError(f"must be a name or a glob of 1 to {MAX_NAME} characters, such as big-1 or gpu-*")
    if not _could_match(value):
        raise ValueError(_HOPELESS.format("gpu-[0-9]*; a node's name has no /"))
    return value


def _namespace(value: str) -> str:
    if not 1 <= len(value) <= MAX_NAME or "/" in value:
        raise ValueError(f"must be a namespace or a glob of 1 to {MAX_NAME} characters, such as ci-*")
    if not _could_match(value):
        raise ValueError(_HOPELESS.format("ci-[0-9]*"))
    return value


def _namespace_of_many(value: str) -> str:
    try:
        return _namespace(value)
    except ValueError as error:
        raise ValueError(f"{error}; single VMs go to recommendOnlyVms") from None


def _vm(value: str) -> str:
    namespace, _, name = value.partition("/")
    if not namespace or not name or len(value) > MAX_NAME:
        raise ValueError(
            f"must be a name or a glob of at most {MAX_NAME} characters for namespace/name, such as default/db-*"
        )
    if not _could_match(value, parts=2):
        raise ValueError(_HOPELESS.format("default/db-[0-9]*, with one /"))
    return value


Watermark = Annotated[rules.Watermark, _WrittenAsShares()]
"""A share of CPU and memory, written as one number for both or as `{cpu: 0.7, memory: 0.8}`."""


class NodeDefaults(Settings):
    """The rules of every node, unless an override says otherwise. A value that is left out is as in `DEFAULT_RULES`."""

    system: Resources | None = None
    """The system's share of a node, which is no room for VMs."""
    watermark: Watermark | None = None
    """The share of a node above which its VMs are to leave, as one number or `{cpu, memory}`."""
    compute_unit: PositiveResources | None = None
    """The step of growth of VMs that have none of their own."""


class OverrideEntry(NodeDefaults):
    """Values for the nodes whose name is in `nodes`, or matches a glob there; of each value the first one wins."""

    nodes: list[Annotated[str, AfterValidator(_name)]]
    """Names of nodes, or globs."""


class GrowthEntry(Settings):
    """Which growth is refused: all of it, or that of VMs whose growth is only recommended."""

    stop: bool = False
    """Nothing grows; decreases pass."""
    recommend_only: bool = False
    """Nothing grows, and each refusal says what would have been permitted."""
    recommend_only_namespaces: list[Annotated[str, AfterValidator(_namespace_of_many)]] = Field(
        default_factory=list
    )
    """As `recommendOnly`, for these namespaces or globs."""
    recommend_only_vms: list[Annotated[str, AfterValidator(_vm)]] = Field(default_factory=list)
    """As `recommendOnly`, for these VMs (`NAMESPACE/NAME`) or globs."""


class MigrationEntry(Settings):
    """Whether VMs leave nodes above their watermark."""

    enabled: bool = False
    """VMs leave nodes above their watermark, if something can move them."""


class PluginEntry(Settings):
    """A plugin of the chain: its registered name, and its parameters as it wants them. `instance` is what logs, metrics and reasons
    call it, where the same one is listed again."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The name under which it is registered."""
    args: Any = None
    """Its parameters, which it checks itself."""
    instance: Annotated[str, Field(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")] = ""
    """The name of this entry in logs, metrics and reasons; its name, if it is empty."""

    def named(self) -> config.Named:
        return config.Named(self.name, self.args, self.instance)


class DefaultPoolEntry(Settings):
    """The pool of VMs without the label `parley.dev/pool` in some namespaces, or with some labels, or both."""

    pool: PoolName
    """The pool of the VMs that match."""
    namespaces: list[Annotated[str, AfterValidator(_namespace)]] = Field(default_factory=list)
    """Namespaces or globs; any of them matches."""
    labels: Labels = Field(default_factory=dict)
    """Labels, all of which a VM must have."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.namespaces and not self.labels:
            raise ValueError("must have namespaces or labels, such as namespaces: ['*'] for every VM")
        return self

    def default(self) -> rules.DefaultPool:
        return rules.DefaultPool(self.pool, tuple(self.namespaces), tuple(sorted(self.labels.items())))


class PoolsEntry(Settings):
    """The chain of pool plugins in its order, how long (seconds) a full pool is not asked for more, and the pools of VMs
    that name none: the first entry that matches counts."""

    plugins: list[PluginEntry] = Field(default_factory=list)
    cooldown: Annotated[float, Field(ge=1, le=86_400)] = COOLDOWN_S
    """For so many seconds a pool that admitted no more is not asked again for more, 1 to 86400."""
    defaults: Annotated[list[DefaultPoolEntry], Field(max_length=MAX_DEFAULTS)] = Field(default_factory=list)

    def config(self) -> config.ChainConfig:
        return config.ChainConfig(tuple(entry.named() for entry in self.plugins), self.cooldown)


class TemplateMetadataEntry(Settings):
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of each placeholder, beside its own."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of each placeholder, beside its own."""


def _pod_spec(value: dict[str, Any]) -> dict[str, Any]:
    containers = value.get("containers", [])
    if not isinstance(containers, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in containers
    ):
        raise ValueError(
            "containers must be a list of mappings with a name; that of the placeholder is placeholder"
        )
    return value


class TemplateEntry(Settings):
    """A part of a pod, which is merged into each placeholder."""

    metadata: TemplateMetadataEntry = Field(default_factory=TemplateMetadataEntry)
    spec: Annotated[dict[str, Any], AfterValidator(_pod_spec)] = Field(default_factory=dict)
    """A part of the pod's spec, such as `{containers: [{name: placeholder, image: …}]}`."""


class PlaceholderEntry(Settings):
    """Pending pods that make a cluster autoscaler add a node for growth that is denied for want of room."""

    after: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Seconds for which growth must have been denied."""
    node_pool_labels: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=317)]], Field(min_length=1, max_length=16)
    ] = Field(default_factory=lambda: list(NODE_POOL_LABELS))
    """The labels that name the pool of a node, of which the first one counts that it has."""
    priority_class: Annotated[str, Field(min_length=1, max_length=253)] = "parley-placeholder"
    """The PriorityClass of the pods; its value must be negative."""
    most_pods: Annotated[int, Field(ge=1, le=100)] = 5
    """At most so many, one for each pool of nodes: those where most is denied."""
    most: PositiveResources = values.Resources(4000, 16 * 2**30)
    """The most that one requests."""
    step: PositiveResources = values.Resources(500, 512 * 2**20)
    """Requests are whole steps of this amount; a pod is made anew if their number changes."""
    template: TemplateEntry = Field(default_factory=TemplateEntry)

    def given(self) -> PlaceholderRules:
        return PlaceholderRules(
            self.after,
            tuple(self.node_pool_labels),
            self.priority_class,
            self.most_pods,
            self.most,
            self.step,
            self.template.model_dump(),
        )


class Config(Settings):
    """The whole file. All of it may be left out."""

    node_defaults: NodeDefaults = Field(default_factory=NodeDefaults)
    node_overrides: list[OverrideEntry] = Field(default_factory=list)
    growth: GrowthEntry = Field(default_factory=GrowthEntry)
    migration: MigrationEntry = Field(default_factory=MigrationEntry)
    pools: PoolsEntry = Field(default_factory=PoolsEntry)
    scheduling: SchedulingEntry = Field(default_factory=SchedulingEntry)
    placeholder: PlaceholderEntry | None = None
    """Placeholders on Kubernetes; none if it is left out."""

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Overrides of no node or no value, names that are given twice, and more than can be matched in time."""
        overrides = listed(data, "nodeOverrides")
        lists = {
            f"nodeOverrides[{index}].nodes": listed(each, "nodes") for index, each in enumerate(overrides)
        }
        faults = [fault for index, each in enumerate(overrides) for fault in _override_faults(index, each)]
        if len(overrides) > MAX_OVERRIDES:
            faults.append(
                f"nodeOverrides: must be at most {MAX_OVERRIDES}, not {len(overrides)}; "
                "one override may name many nodes"
            )
        growth = data.get("growth") if isinstance(data, dict) else None
        for key in ("recommendOnlyNamespaces", "recommendOnlyVms"):
            lists[f"growth.{key}"] = listed(growth, key)
        pools = data.get("pools") if isinstance(data, dict) else None
        for index, entry in enumerate(listed(pools, "defaults")):
            lists[f"pools.defaults[{index}].namespaces"] = listed(entry, "namespaces")
        for path, names in lists.items():
            faults += _repeated(path, names)
        globs = sum(
            isinstance(name, str) and rules.is_glob(name) for names in lists.values() for name in names
        )
        if globs > MAX_GLOBS:
            faults.append(
                f"(file): must hold at most {MAX_GLOBS} globs in all, not {globs}; names without *, ? and [ are no globs"
            )
        return faults


class _ConfigWithoutMigrator(Config):
    """The file of a scheduler that cannot migrate: its cluster is a file."""

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Those of any configuration, and a migration or placeholders that nothing here can carry out."""
        faults = super().cross_faults(data)
        migration = data.get("migration") if isinstance(data, dict) else None
        if isinstance(migration, dict) and migration.get("enabled") is True:
            faults.append(
                "migration.enabled: must be false (found True): this scheduler has nothing that can migrate VMs"
            )
        if isinstance(data, dict) and data.get("placeholder") is not None:
            faults.append("placeholder: must be left out: this scheduler's cluster is not Kubernetes")
        return faults


def _override_faults(index: int, entry: object) -> list[str]:
    if not isinstance(entry, dict):
        return []
    faults = []
    if entry.get("nodes") == []:
        faults.append(f"nodeOverrides[{index}].nodes: must name at least one node, such as big-1 or gpu-*")
    if all(entry.get(key) is None for key in ("system", "watermark", "computeUnit")):
        faults.append(
            f"nodeOverrides[{index}]: sets nothing; must have at least one of system, watermark and computeUnit"
        )
    return faults


def _repeated(path: str, names: list[Any]) -> list[str]:
    counts = Counter(name for name in names if isinstance(name, str))
    return [
        f"{path}: {name[:60]!r} is given {count} times; once is enough"
        for name, count in counts.items()
        if count > 1
    ]


def rules_of(file: Config) -> rules.Rules:
    """The rules that the file states, with `DEFAULT_RULES` for what it leaves out."""
    defaults, given, growth = rules.DEFAULT_RULES.node, file.node_defaults, file.growth
    return rules.Rules(
        rules.NodeRules(
            given.system if given.system is not None else defaults.system,
            given.watermark if given.watermark is not None else defaults.watermark,
            given.compute_unit if given.compute_unit is not None else defaults.compute_unit,
        ),
        tuple(
            rules.NodeOverride(tuple(entry.nodes), entry.system, entry.watermark, entry.compute_unit)
            for entry in file.node_overrides
        ),
        rules.GrowthSwitches(
            growth.stop,
            growth.recommend_only,
            tuple(growth.recommend_only_namespaces),
            tuple(growth.recommend_only_vms),
        ),
        file.migration.enabled,
        tuple(entry.default() for entry in file.pools.defaults),
    )


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that the file says. The profiles of the scheduling framework are unchecked: the plugins that can be enabled are not known
    here."""

    rules: rules.Rules
    chain: config.ChainConfig
    profiles: tuple[Profile, ...]
    placeholders: PlaceholderRules | None = None


def _all_of(file: Config) -> Configuration:
    return Configuration(
        rules_of(file),
        file.pools.config(),
        file.scheduling.all_profiles(),
        file.placeholder.given() if file.placeholder is not None else None,
    )


def model_of(*, migrator_present: bool) -> type[Config]:
    """How the configuration is read. Without a migrator migration cannot be switched on."""
    return Config if migrator_present else _ConfigWithoutMigrator


def read_configuration(path: Path, content: bytes, model: type[Config]) -> Configuration:
    """The configuration in a text. Raises `SettingsError` with every fault; `path` names there the place of the text."""
    return _all_of(parse(path, content, model))


class ConfigFile:
    """The rules in the file at `path`. Without a migrator (`migrator_present`) migration cannot be switched on."""

    def __init__(self, path: Path, migrator_present: bool) -> None:
        self._log = logs.logger("config file")
        self._path = path
        self._file = WatchedFile(path, model_of(migrator_present=migrator_present), _all_of)
        self._has_begun = False

    @property
    def path(self) -> Path:
        return self._path

    async def refresh(self) -> Configuration | None:
        """The configuration in the file, if it was read for the first time or has changed since; else None.

        Raises `SettingsError` and `FileUnreachableError` as `WatchedFile.refresh` does; then the configuration that
        was returned before stays in force.
        """
        read = await self._file.refresh()
        if read is not None:
            if self._has_begun:
                self._log.info("configuration read again")
            self._has_begun = True
        return read
