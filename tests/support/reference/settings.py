"""The settings of all files: their paths, kinds, defaults, and what the docstring below each one says."""

import ast
import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Final, cast, get_args

from pydantic import PydanticInvalidForJsonSchema, TypeAdapter
from pydantic.fields import FieldInfo

from agent.daemon import policies
from agent.daemon.settings import AgentSettings
from agent.daemon.windows import WindowEntry
from agent.node.device_inventory import DeviceInventory
from agent.node.qos.strategies.cpu_burst import CPUBurstArgs
from agent.node.qos.strategies.cpu_suppress import CPUSuppressArgs
from agent.node.qos.strategies.cpuset_allocator import CPUSetAllocatorArgs
from agent.node.qos.strategies.evicting import CPUEvictArgs, MemoryEvictArgs
from hosting.settings import Settings
from informant.settings import InformantSettings, NodeSettings
from protocol.values import Resources
from scheduler.access.settings import AccessSettings
from scheduler.clusters.file import ClusterFile
from scheduler.permits.service.config_file import Config
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.registry import SHIPPED, new_registry
from scheduler.pools.shipped.elastic_quota import ElasticQuotaPoolArgs
from scheduler.pools.shipped.http_admission import HttpAdmissionArgs
from scheduler.pools.shipped.quota_args import QuotaArgs
from tests.tidy.repository import ROOT

MOST_ALIKE: Final = 4
"""More fields of one kind within a mapping, such as the points of a profile, are told once,"""
EACH: Final = "POINT"
"""by this name."""


_AMOUNTS: Final = {
    "_AsAmount": "`{cpu, memory}`",
    "_WrittenAsShares": "share, or `{cpu, memory}`",
    "_memory ": "amount of memory",
    "_cpu ": "amount of CPU",
}
"""Annotations of amounts, by what stands in them."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file by its model. `parts` are models of what the file's own model takes as it is: by their paths."""

    title: str
    about: str
    model: type[Settings]
    parts: Mapping[str, type[Settings]] = field(default_factory=dict)
    page: str = ""
    """A page whose rows say what its settings mean, and what their defaults are."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting. `declared_in` is the module and class to look at."""

    path: str
    kind: str
    default: str
    meaning: str
    declared_in: str


def _args_of_scheduling_plugins() -> dict[str, type[Settings]]:
    """The args of those that are shipped, by the prefix of their paths."""
    registry, found = new_registry(), dict[str, type[Settings]]()
    for name in SHIPPED:
        plugin = registry.get(name)
        assert isinstance(plugin, type)
        assert issubclass(plugin, ShippedPlugin)
        if plugin.ARGS.model_fields:
            found[f"{name}."] = plugin.ARGS
    return found


FILES: Final = (
    SettingsFile(
        "The agent's file",
        "`parley-agent --config FILE`; [agent.md](agent.md) is the page to read first.",
        AgentSettings,
        {
            "windows[].": WindowEntry,
            "utilisation.": policies.UtilisationArgs,
            "load-average.": policies.LoadAverageArgs,
            "pressure.": policies.PressureArgs,
            "qos.args.CPUBurst.": CPUBurstArgs,
            "qos.args.CPUEvict.": CPUEvictArgs,
            "qos.args.CPUSetAllocator.": CPUSetAllocatorArgs,
            "qos.args.CPUSuppress.": CPUSuppressArgs,
            "qos.args.MemoryEvict.": MemoryEvictArgs,
        },
        "docs/reference/agent.md",
    ),
    SettingsFile(
        "The scheduler's configuration",
        "`parley-scheduler --config FILE`, read again when it changes. The `args` of the plugins that are shipped stand below their names.",
        Config,
        {
            "quota.": QuotaArgs,
            "elastic-quota.": ElasticQuotaPoolArgs,
            "http-admission.": HttpAdmissionArgs,
            **_args_of_scheduling_plugins(),
        },
    ),
    SettingsFile(
        "The cluster's file", "`parley-scheduler --cluster FILE`, where there is no Kubernetes.", ClusterFile
    ),
    SettingsFile(
        "The access file",
        "`parley-scheduler --access FILE`, read again when it changes; [examples/access.yaml](../../examples/access.yaml) shows one.",
        AccessSettings,
    ),
    SettingsFile("The informant's file", "`parley-informant --config FILE`.", InformantSettings),
    SettingsFile("The node informant's file", "`parley-informant --node --config FILE`.", NodeSettings),
    SettingsFile(
        "The inventory of a node's devices", "`qos.deviceInventory` of the agent's file.", DeviceInventory
    ),
)


def of(file: SettingsFile) -> Iterator[Setting]:
    """The settings of a file, in the order in which its models have them."""
    rows = _rows(file.page) if file.page else {}
    models = {"": file.model, **file.parts}
    for prefix, model in models.items():
        for path, owner, name in _fields(model, prefix):
            info = owner.model_fields[name]
            default, meaning = rows.get(path) or (_default(info), _docstring(owner, name))
            yield Setting(
                path,
                _written_kind(_kind(info), default),
                default,
                meaning,
                f"{owner.__module__}.{owner.__name__}.{name}",
            )


def models_of(file: SettingsFile) -> Iterator[type[Settings]]:
    """The models of a file, with all that are parts of them."""
    waiting = [file.model, *file.parts.values()]
    while waiting:
        model = waiting.pop()
        yield model
        for info in model.model_fields.values():
            waiting += _models(info.annotation)


def _fields(model: type[Settings], prefix: str) -> Iterator[tuple[str, type[Settings], str]]:
    alike = Counter(
        str(info.annotation) for info in model.model_fields.values() if list(_models(info.annotation))
    )
    told = set()
    for name, info in model.model_fields.items():
        here = f"{prefix}{info.alias}"
        parts = list(_models(info.annotation))
        if alike[str(info.annotation)] > MOST_ALIKE:
            if str(info.annotation) in told:
                continue
            told.add(str(info.annotation))
            here = f"{prefix}{EACH}"
        mark = "[]" if "list" in str(info.annotation) else ".NAME" if "dict" in str(info.annotation) else ""
        for part in parts:
            yield from _fields(part, f"{here}{mark}.")
        if not parts:
            yield here, model, name


def _models(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


@cache
def docstrings(model: type[Any]) -> Mapping[str, str]:
    """The text below each field, or member, that the class itself declares."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for before, after in pairwise(body):
        target: ast.expr | None = before.target if isinstance(before, ast.AnnAssign) else None
        if isinstance(before, ast.Assign):
            target = before.targets[0]
        if (
            isinstance(target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[target.id] = " ".join(str(after.value.value).split())
    return found


def _docstring(model: type[Settings], name: str) -> str:
    for base in model.__mro__:
        if issubclass(base, Settings) and base is not Settings:
            told = docstrings(base).get(name)
            if told:
                return told
    return ""


def _rows(page: str) -> dict[str, tuple[str, str]]:
    """The default and the meaning of each setting, as they are written on a page."""
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]+) \| ([^|]+) \|$", (ROOT / page).read_text(), re.MULTILINE)
    return {
        path: (default, re.sub(r"\]\((?=\w)(?!http)", "](../", meaning))
        for cell, default, meaning in rows
        for path in re.findall(r"`([^`]+)`", cell)
    }


def _written_kind(kind: str, default: str) -> str:
    """The kind as one writes it: shares are whole parts per million inside, and decimals in the file."""
    plain = default.strip("`")
    if kind.startswith("whole number") and re.fullmatch(r"\d*\.\d+", plain):
        kind = kind.replace("whole number", "number")
    return f"{kind} or null" if plain == "null" and "null" not in kind else kind


def _kind(info: FieldInfo) -> str:
    """The allowed kind of value, as JSON Schema names it; amounts are quantities."""
    written = f"{info.annotation} {info.metadata}"
    for mark, kind in _AMOUNTS.items():
        if mark in written:
            return kind + (" or null" if "None" in str(info.annotation) else "")
    try:
        schema = TypeAdapter[object](cast("Any", info.annotation)).json_schema(mode="validation")
    except PydanticInvalidForJsonSchema:
        return "see the text"
    return _named(schema)


def _named(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_named(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_named(schema.get('items', {}))}"
    return {"object": "mapping", "string": "text", "null": "null", "integer": "whole number"}.get(
        str(schema.get("type", "")), str(schema.get("type", "any"))
    )


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if "_memory " in f"{info.annotation} {info.metadata}" and isinstance(value, int):
        return f"`{Resources(0, value).written()['memory']}`"
    if isinstance(value, Resources):
        return f"`{json.dumps(value.written())}`"
    written = "null" if value is None else TypeAdapter(type(value)).dump_json(value).decode()
    return f"`{written.strip(chr(34))}`" if written != '""' else ""
