"""The flags of QoS plugins, the gates that switch plugins on, and how both are read. Source: seed 002, `QOSExtensionConfig`."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Final, cast

from agent.node.qos.core import gates
from agent.node.qos.core.gates import NAME_RULE, FeatureGates, FeatureSpec, is_name
from agent.node.qos.ports import ExtensionPlugin, FlagSet
from hosting.registry import FactoryRegistry, RegistryError, at_once, error_text
from hosting.settings import FaultsError

QOS_PLUGIN_GROUP: Final = "parley.qos_plugins"
METHODS: Final = ("init_flags", "setup", "run", "stop")

ExtensionFactory = Callable[[], ExtensionPlugin]


@dataclass(frozen=True, slots=True)
class RegisteredExtension:
    """A registered plugin and its feature. `plugin` is None where it could not be made, and `error` says why: the plugin
    then cannot be enabled, and the others are as they are."""

    name: str
    spec: FeatureSpec
    plugin: ExtensionPlugin | None
    error: str = ""


class ExtensionRegistry(FactoryRegistry[ExtensionFactory]):
    """QoS plugins by the name of their feature."""

    def __init__(self) -> None:
        super().__init__("QoS extension plugin", is_name, NAME_RULE)
        self._specs: dict[str, FeatureSpec] = {}

    def register_plugin(self, feature: str, spec: FeatureSpec, plugin: ExtensionPlugin) -> None:
        """Add a plugin. Raises `RegistryError` for a bad or taken name, and for what is no plugin."""
        fault = _fault(plugin)
        if fault or not isinstance(spec, FeatureSpec):
            raise RegistryError(f"QoS extension plugin {feature!r}: {fault or 'its spec is no FeatureSpec'}")
        self.register(feature, lambda: plugin)
        self._specs[feature] = spec

    def merge(self, other: "ExtensionRegistry") -> None:
        """Add the plugins of `other`. Raises `RegistryError` at the first taken name."""
        for name, load in other._factories.items():  # noqa: SLF001 - of the same class
            self._add(name, load)
        self._specs |= other._specs  # noqa: SLF001 - of the same class

    def extensions(self) -> tuple[RegisteredExtension, ...]:
        """Every plugin, made now, in the order of registration. Never raises: what cannot be made says why."""
        return tuple(self._made(name) for name in self._factories)

    def _made(self, name: str) -> RegisteredExtension:
        spec = self._specs.get(name, FeatureSpec())
        try:
            plugin = at_once(self.get(name))
        except Exception as error:  # noqa: BLE001 - what an outside distribution raises must not end the program
            return RegisteredExtension(name, spec, None, error_text(error))
        if fault := _fault(plugin):
            return RegisteredExtension(name, spec, None, fault)
        spec = self._specs.get(name) or getattr(plugin, "feature_spec", None) or spec
        if not isinstance(spec, FeatureSpec):
            return RegisteredExtension(
                name, FeatureSpec(), None, f"feature_spec is no FeatureSpec but {spec!r}"
            )
        return RegisteredExtension(name, spec, plugin)  # type: ignore[arg-type]  # has the methods

    def _taken(self, name: str) -> str:
        return f"{name} extension plugin already registered"


def _fault(plugin: object) -> str:
    """Why something is no plugin; empty where it is one."""
    missing = [method for method in METHODS if not callable(getattr(plugin, method, None))]
    if isinstance(plugin, type):
        return f"{plugin!r} is a class, not a plugin"
    return f"{plugin!r} is no plugin: it has no {', '.join(missing)}" if missing else ""


REGISTERED: Final = ExtensionRegistry()
"""What this process has registered itself."""
_OURS: Final[dict[str, str]] = {
    "CPUBurst": "agent.node.qos.strategies.cpu_burst:CPUBurst",
    "CPUEvict": "agent.node.qos.strategies.cpu_evict:CPUEvict",
    "CPUSuppress": "agent.node.qos.strategies.cpu_suppress:CPUSuppress",
    "MemoryEvict": "agent.node.qos.strategies.memory_evict:MemoryEvict",
}
"""The strategies that come with the agent: feature, and where the plugin's class is."""


def register_qos_ext_plugin(feature: str, feature_spec: FeatureSpec, plugin: ExtensionPlugin) -> None:
    """Add a plugin to the process's registry, before the command line is parsed. The first of a name stays.

    Raises `RegistryError` for a bad or taken name. Source: seed 002, `RegisterQOSExtPlugin`.
    """
    REGISTERED.register_plugin(feature, feature_spec, plugin)


def standard(
    registered: ExtensionRegistry | None = None, entries: Iterable[metadata.EntryPoint] | None = None
) -> ExtensionRegistry:
    """Our plugins, those that this process has registered, and those of installed distributions.

    Raises `RegistryError` where two use one name.
    """
    found = ExtensionRegistry()
    for name, value in _OURS.items():
        found.add_entry_point(metadata.EntryPoint(name, value, QOS_PLUGIN_GROUP))
    found.merge(REGISTERED if registered is None else registered)
    for entry in metadata.entry_points(group=QOS_PLUGIN_GROUP) if entries is None else entries:
        found.add_entry_point(entry)
    return found


EXTENSIONS_FLAG: Final = "qos-extension-plugins"
"""The published flag; `Name=true,Other=false`."""

WINDOW: Final = "-window-seconds"
"""Ends the name of a flag that is a window of metrics: one shorter than the time between two measurements is often empty."""

FlagValue = bool | int | float | str
_FLAG: Final = re.compile(r"[a-z][a-z0-9.-]{0,126}")
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, whose it is, and its default, whose type is the flag's."""

    name: str
    owner: str
    default: FlagValue
    help_text: str


class Flags:
    """The flags of all plugins. Values are set once, by `parse`; after that any thread may read them."""

    def __init__(self) -> None:
        # The map flag is there from the start, so that no plugin can take its name; its help comes when the features are known.
        self._flags: dict[str, Flag] = {EXTENSIONS_FLAG: Flag(EXTENSIONS_FLAG, "the QoS manager", "", "")}
        self._values: dict[str, FlagValue] = {}

    def scope(self, owner: str) -> FlagSet:
        return OwnedFlags(self, owner)

    def add(self, flag: Flag) -> None:
        """Add a flag. Raises `ValueError` for a bad or taken name, or a default of another type."""
        if not _FLAG.fullmatch(flag.name):
            raise ValueError(
                f"flag {flag.name!r}: a name begins with a-z and has at most 127 of a-z, 0-9, dot and hyphen"
            )
        if flag.name in self._flags:
            raise ValueError(f"flag {flag.name!r} is taken by {self._flags[flag.name].owner}")
        if type(flag.default) not in _KINDS:
            raise ValueError(
                f"flag {flag.name!r}: the default must be a bool, a number or a text, not {flag.default!r}"
            )
        self._flags[flag.name] = flag

    def describe(self, name: str, help_text: str) -> None:
        self._flags[name] = replace(self._flags[name], help_text=help_text)

    def discard(self, owner: str) -> None:
        self._flags = {name: flag for name, flag in self._flags.items() if flag.owner != owner}

    def get(self, name: str) -> FlagValue:
        """The value of a flag, or its default. Raises `ValueError` for an unknown one."""
        if name not in self._flags:
            raise ValueError(self._unknown(name))
        return self._values.get(name, self._flags[name].default)

    def known(self) -> tuple[Flag, ...]:
        return tuple(self._flags[name] for name in sorted(self._flags))

    def parse(self, values: Mapping[str, object]) -> list[str]:
        """Set values by name; a text is read as the flag's type. What is wrong comes as lines that begin with the flag's name,
        and is not set."""
        faults = []
        for name, value in values.items():
            flag = self._flags.get(name)
            if flag is None:
                faults.append(f"{name}: {self._unknown(name)}")
                continue
            read = _read(value, type(flag.default))
            if read is None:
                faults.append(f"{name}: must be {_KINDS[type(flag.default)]} (found {str(value)[:60]!r})")
            else:
                self._values[name] = read
        return faults

    def _unknown(self, name: str) -> str:
        return f"there is no flag {name!r} (there are: {', '.join(sorted(self._flags)) or 'none'})"


class OwnedFlags:
    """The flag set of one plugin: adds flags in its name, and reads any flag."""

    def __init__(self, flags: Flags, owner: str) -> None:
        self._flags = flags
        self._owner = owner

    def add(self, name: str, default: FlagValue, help_text: str) -> None:
        """Add a flag. The type of `default` is the flag's. Raises `ValueError` for a bad or taken name."""
        self._flags.add(Flag(name, self._owner, default, help_text))

    def get(self, name: str) -> FlagValue:
        """The value of a flag, once all flags are parsed; before that its default. Raises `ValueError` for an unknown one."""
        return self._flags.get(name)


def _read(value: object, kind: type) -> FlagValue | None:
    """A value as a flag's type; None where it does not fit."""
    if kind is bool:
        return (
            value if isinstance(value, bool) else gates.WORDS.get(value) if isinstance(value, str) else None
        )
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is int and isinstance(value, float):
        return None
    try:
        read: int | float = kind(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


class QOSExtensionConfig:
    """Which QoS plugins are on, and their flags. Source: seed 002, `QOSExtensionConfig`.

    `feature_gates` are the switches of the settings; those of the map flag are added and win.
    """

    def __init__(
        self, feature_gates: Mapping[str, bool] | None = None, registry: ExtensionRegistry | None = None
    ) -> None:
        self.feature_gates: dict[str, bool] = dict(feature_gates or {})
        self.extensions: tuple[RegisteredExtension, ...] = (registry or standard()).extensions()
        self.gates = FeatureGates()
        self.recommend_only: frozenset[str] = frozenset()

    def init_flags(self, flags: Flags) -> None:
        """Every plugin's flags, then all features into the gate, then the help of the map flag, which lists them.

        A plugin that raises here is left without flags and cannot be enabled.
        """
        self.extensions = tuple(_with_flags(each, flags) for each in self.extensions)
        self.gates = FeatureGates({each.name: each.spec for each in self.extensions})
        flags.describe(EXTENSIONS_FLAG, self.gates.help_text())

    def faults(self, values: Mapping[str, object]) -> list[str]:
        """What is wrong with switches: unknown gates, and gates of plugins that cannot be used."""
        found = self.gates.faults(values)
        on = {each.name: values.get(each.name, each.spec.default) for each in self.extensions}
        found += (
            f"{each.name}: cannot be enabled: {each.error}"
            for each in self.extensions
            if each.error and on[each.name]
        )
        return found

    def flag_faults(self, switches: Mapping[str, bool]) -> list[str]:
        """What enabled plugins find wrong with the values of their flags, where they look at them (`flag_faults`)."""
        found = []
        for each in self.extensions:
            look = getattr(each.plugin, "flag_faults", None)
            if look is None or not switches.get(each.name, each.spec.default):
                continue
            try:
                found += [str(fault) for fault in cast("Iterable[object]", at_once(look))]
            except Exception as error:  # noqa: BLE001 - a plugin of anybody's must not end the program
                found.append(f"{each.name}: flag_faults failed: {error_text(error)}")
        return found

    def window_faults(self, switches: Mapping[str, bool], flags: Flags, interval_s: float) -> list[str]:
        """What is wrong with `qos.interval` beside the windows of enabled plugins."""
        on = {_owner(each) for each in self.extensions if switches.get(each.name, each.spec.default)}
        windows = [
            (flag.name, value)
            for flag in flags.known()
            if flag.owner in on and flag.name.endswith(WINDOW)
            if isinstance(value := flags.get(flag.name), int | float)
        ]
        return [
            f"qos.interval: must be at most qos.flags.{name}, which is {value:g} (found {interval_s:g})"
            for name, value in windows
            if value < interval_s
        ]


def _owner(extension: RegisteredExtension) -> str:
    return f"the plugin {extension.name}"


def _with_flags(extension: RegisteredExtension, flags: Flags) -> RegisteredExtension:
    if extension.plugin is None:
        return extension
    owner = _owner(extension)
    try:
        at_once(extension.plugin.init_flags, flags.scope(owner))
    except Exception as error:  # noqa: BLE001 - a plugin of anybody's must not end the program
        flags.discard(owner)
        return replace(extension, plugin=None, error=f"init_flags failed: {error_text(error)}")
    return extension


def configured(
    feature_gates: Mapping[str, bool],
    flag_values: Mapping[str, object],
    extension_plugins: str = "",
    recommend_only: Iterable[str] = (),
    registry: ExtensionRegistry | None = None,
    *,
    interval_s: float = 0.0,
) -> QOSExtensionConfig:
    """The whole configuration: `featureGates`, `flags` and `recommendOnly` of the settings, and the map flag's text. `interval_s` is
    the settings' `interval`.

    Raises `FaultsError` with every fault, each with its path in the settings; nothing is started before all is right.
    """
    config = QOSExtensionConfig(feature_gates, registry)
    flags = Flags()
    config.init_flags(flags)
    faults = [f"qos.flags.{each}" for each in flags.parse(flag_values)]
    given, malformed = gates.parsed(extension_plugins or str(flags.get(EXTENSIONS_FLAG)))
    faults += [f"--{EXTENSIONS_FLAG}: {each}" for each in (*malformed, *config.gates.faults(given))]
    known = config.gates.specs
    switches = {**feature_gates, **{name: is_on for name, is_on in given.items() if name in known}}
    faults += [f"qos.featureGates.{each}" for each in config.faults(switches)]
    faults += [f"qos.flags.{each}" for each in config.flag_faults(switches)]
    faults += config.window_faults(switches, flags, interval_s)
    names = tuple(recommend_only)
    faults += [
        f"qos.recommendOnly[{index}]: there is no QoS plugin {name!r} (there are: {', '.join(sorted(known)) or 'none'})"
        for index, name in enumerate(names)
        if name not in known
    ]
    if faults:
        raise FaultsError(faults)
    config.feature_gates = switches
    config.gates = config.gates.with_values(switches)
    config.recommend_only = frozenset(names)
    return config
