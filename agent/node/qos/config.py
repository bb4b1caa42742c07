"""QoS plugins by name, their args, and the gates that switch them on. Source: seed 002, `QOSExtensionConfig`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Final

from agent.node.qos.core import gates
from agent.node.qos.core.gates import NAME_RULE, FeatureGates, FeatureSpec, is_name
from agent.node.qos.ports import ExtensionPlugin, StrategyArgs
from hosting.registry import FactoryRegistry, RegistryError, at_once, error_text
from hosting.settings import FaultsError, check

QOS_PLUGIN_GROUP: Final = "parley.qos_plugins"
METHODS: Final = ("init_flags", "setup", "run", "stop")

ExtensionFactory = Callable[[], ExtensionPlugin]


@dataclass(frozen=True, slots=True)
class RegisteredExtension:
    """A registered plugin, its feature, and the args that it was given. `plugin` is None if it could not be made, and `error` says
    why: the plugin then cannot be enabled, and the others are as they are."""

    name: str
    spec: FeatureSpec
    plugin: ExtensionPlugin | None
    error: str = ""
    args: StrategyArgs | None = None


class NoStrategyArgs(StrategyArgs):
    """Of a strategy that declares none."""


class ExtensionRegistry(FactoryRegistry[ExtensionFactory]):
    """QoS plugins by the name of their feature."""

    def __init__(self) -> None:
        super().__init__("QoS extension plugin", is_name, NAME_RULE)
        self._specs: dict[str, FeatureSpec] = {}

    def register_plugin(self, feature: str, spec: FeatureSpec, plugin: ExtensionPlugin) -> None:
        """Add a plugin. Raises `RegistryError` for a bad or taken name, and if the value is no plugin."""
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
        """Every plugin, made now, in the order of registration. Never raises: an extension that cannot be made says why."""
        return tuple(self._made(name) for name in self._factories)

    def _made(self, name: str) -> RegisteredExtension:
        spec = self._specs.get(name, FeatureSpec())
        try:
            plugin = at_once(self.get(name))
        except Exception as error:  # noqa: BLE001 - an error of an outside distribution must not end the program
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
    """Why something is no plugin; empty if it is one."""
    missing = [method for method in METHODS if not callable(getattr(plugin, method, None))]
    if isinstance(plugin, type):
        return f"{plugin!r} is a class, not a plugin"
    return f"{plugin!r} is no plugin: it has no {', '.join(missing)}" if missing else ""


REGISTERED: Final = ExtensionRegistry()
"""The plugins that this process has registered itself."""
_OURS: Final[dict[str, str]] = {
    "CPUBurst": "agent.node.qos.strategies.cpu_burst:CPUBurst",
    "CPUEvict": "agent.node.qos.strategies.evicting:CPUEvict",
    "CPUSetAllocator": "agent.node.qos.strategies.cpuset_allocator:CPUSetAllocator",
    "CPUSuppress": "agent.node.qos.strategies.cpu_suppress:CPUSuppress",
    "MemoryEvict": "agent.node.qos.strategies.evicting:MemoryEvict",
}
"""The strategies that come with the agent: feature, and the path of the plugin's class."""


def register_qos_ext_plugin(feature: str, feature_spec: FeatureSpec, plugin: ExtensionPlugin) -> None:
    """Add a plugin to the process's registry, before the command line is parsed. The first of a name stays.

    Raises `RegistryError` for a bad or taken name. Source: seed 002, `RegisterQOSExtPlugin`.
    """
    REGISTERED.register_plugin(feature, feature_spec, plugin)


def standard(
    registered: ExtensionRegistry | None = None, entries: Iterable[metadata.EntryPoint] | None = None
) -> ExtensionRegistry:
    """Our plugins, those that this process has registered, and those of installed distributions.

    Raises `RegistryError` if two use one name.
    """
    found = ExtensionRegistry()
    for name, value in _OURS.items():
        found.add_entry_point(metadata.EntryPoint(name, value, QOS_PLUGIN_GROUP))
    found.merge(REGISTERED if registered is None else registered)
    for entry in metadata.entry_points(group=QOS_PLUGIN_GROUP) if entries is None else entries:
        found.add_entry_point(entry)
    return found


EXTENSIONS_FLAG: Final = "qos-extension-plugins"
"""The published option of the command line; `Name=true,Other=false`."""


class QOSExtensionConfig:
    """Which QoS plugins are on, and their args. Source: seed 002, `QOSExtensionConfig`.

    `feature_gates` are the switches of the settings; those of the command line are added and win.
    """

    def __init__(
        self, feature_gates: Mapping[str, bool] | None = None, registry: ExtensionRegistry | None = None
    ) -> None:
        self.feature_gates: dict[str, bool] = dict(feature_gates or {})
        self.extensions: tuple[RegisteredExtension, ...] = (registry or standard()).extensions()
        self.gates = FeatureGates({each.name: each.spec for each in self.extensions})
        self.recommend_only: frozenset[str] = frozenset()

    def init_flags(self, args: Mapping[str, object]) -> list[str]:
        """Give every plugin its part of `qos.args`, in the order of registration. Returns its faults, with the paths below `args`.

        A plugin that raises here cannot be enabled.
        """
        known = self.gates.specs
        faults = [_unknown(name, known) for name in args if name not in known]
        made = []
        for each in self.extensions:
            try:
                made.append(_initialised(each, args.get(each.name)))
            except FaultsError as error:
                faults += error.below(each.name)
                made.append(each)
        self.extensions = tuple(made)
        return faults

    def faults(self, values: Mapping[str, object]) -> list[str]:
        """The faults of switches: unknown gates, and gates of plugins that cannot be used."""
        found = self.gates.faults(values)
        on = {each.name: values.get(each.name, each.spec.default) for each in self.extensions}
        found += (
            f"{each.name}: cannot be enabled: {each.error}"
            for each in self.extensions
            if each.error and on[each.name]
        )
        return found

    def window_faults(self, switches: Mapping[str, bool], interval_s: float) -> list[str]:
        """The faults of `qos.interval` beside the windows of enabled plugins: a window that is shorter is often empty."""
        windows = {
            each.name: getattr(each.args, "window", None)
            for each in self.extensions
            if switches.get(each.name, each.spec.default)
        }
        return [
            f"qos.interval: must be at most qos.args.{name}.window, which is {window:g} (found {interval_s:g})"
            for name, window in windows.items()
            if isinstance(window, int | float) and window < interval_s
        ]


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"{name}: there is no QoS plugin of this name (there are: {', '.join(sorted(known)) or 'none'})"


def _initialised(extension: RegisteredExtension, given: object) -> RegisteredExtension:
    """The plugin with its args. Raises `FaultsError` for args that its model does not take."""
    plugin = extension.plugin
    if plugin is None:
        return extension
    model = getattr(plugin, "args_model", NoStrategyArgs)
    if not (isinstance(model, type) and issubclass(model, StrategyArgs)):
        return replace(extension, plugin=None, error=f"args_model is no StrategyArgs but {model!r}")
    args = check(given, model)
    try:
        at_once(plugin.init_flags, args)
    except Exception as error:  # noqa: BLE001 - a plugin of anybody's must not end the program
        return replace(extension, plugin=None, error=f"init_flags failed: {error_text(error)}")
    return replace(extension, args=args)


def configured(
    feature_gates: Mapping[str, bool],
    args: Mapping[str, object],
    extension_plugins: str = "",
    recommend_only: Iterable[str] = (),
    registry: ExtensionRegistry | None = None,
    *,
    interval_s: float = 0.0,
) -> QOSExtensionConfig:
    """The whole configuration: `featureGates`, `args` and `recommendOnly` of the settings, and the text of the command line's option.
    `interval_s` is the settings' `interval`.

    Raises `FaultsError` with every fault, each with its path in the settings; nothing is started before all is right.
    """
    config = QOSExtensionConfig(feature_gates, registry)
    faults = [f"qos.args.{each}" for each in config.init_flags(args)]
    given, malformed = gates.parsed(extension_plugins)
    faults += [f"--{EXTENSIONS_FLAG}: {each}" for each in (*malformed, *config.gates.faults(given))]
    known = config.gates.specs
    switches = {**feature_gates, **{name: is_on for name, is_on in given.items() if name in known}}
    faults += [f"qos.featureGates.{each}" for each in config.faults(switches)]
    faults += config.window_faults(switches, interval_s)
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
