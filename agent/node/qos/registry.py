"""Which QoS plugins there are: ours, those that this process registers, and those of installed distributions.

Other distributions offer one through the entry-point group `parley.qos_plugins`: the entry's name is the feature's, its value makes
the plugin when called without arguments, such as the plugin's class. Where the plugin has an attribute `feature_spec` (`FeatureSpec`),
that is the feature's; else the feature is alpha and off by default.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from agent.node.qos.core.gates import NAME_RULE, FeatureSpec, is_name
from agent.node.qos.ports import ExtensionPlugin
from hosting.registry import FactoryRegistry, RegistryError, at_once, error_text

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
