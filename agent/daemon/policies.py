"""Which policies there are: names and the factories behind them, ours and those of installed distributions.

`policies` of a configuration is a list of names, or of `{name, args}`; all of them count, the highest goal wins.
Other distributions offer a policy through the entry-point group `parley.policies`: the entry's name is the policy's,
its value a factory that takes the args and returns an object with `goal(load, sizing)`, which gives a `Goal` with a
`ResourceGoal` for each resource. A policy that knows one number of units only has `is_tied = True`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from agent.core.policies.combined import PREFIX, Combined, PluginPolicy
from agent.core.policies.peaks import LoadTail, Surges
from agent.core.policies.remembered import Zones
from agent.core.policies.stepwise import LoadAverage, Pressure
from agent.core.policies.utilisation import HALF, Utilisation
from agent.core.policies.values import (
    MAX_TEXT,
    MAX_UNITS,
    Goal,
    GoalPart,
    Load,
    Policy,
    ResourceGoal,
    Sizing,
)
from agent.node.plugins.ports import NAME_RULE, is_plugin_name
from hosting.amounts import Memory, share
from hosting.registry import FactoryRegistry, RegistryError
from hosting.settings import FaultsError, Settings, check
from protocol.texts import clean

POLICY_GROUP: Final = "parley.policies"
DEFAULT: Final = ("utilisation",)
MAX_POLICIES: Final = 16
MAX_PARTS: Final = 16
MAX_NAME: Final = len(PREFIX) + 128

Factory = Callable[[Mapping[str, Any]], Policy]
M = TypeVar("M", bound=Settings)

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


Target = Annotated[int, share(0.01, 1)]
LoadTarget = Annotated[int, share(0.01, 2)]
Width = Annotated[int, share(0, 1)]
Percent = Annotated[float, Field(gt=0, le=100)]
Ratio = Annotated[float, Field(gt=0, le=100)]


class UtilisationArgs(Settings):
    """Targets, widths of zones and shares are written as 0.75 and the like, durations in seconds."""

    cpu_target: Target = 900_000
    memory_target: Target | None = 940_000
    """`null`: memory does not count."""
    load_target: LoadTarget = 900_000
    """The load average for each CPU, if CPU time is unknown."""
    memory_margin: Annotated[int, Memory] = 32 * 2**20
    cpu_stable_zone: Width = 80_000
    cpu_mixed_zone: Width = 80_000
    memory_stable_zone: Width = 20_000
    memory_mixed_zone: Width = 20_000
    window: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """After this time the mean has followed a load that stays above or below."""
    tail_window: Annotated[float, Field(ge=0, le=3600)] = 900.0
    """The busiest minutes of this time fit as well; 0: they do not count."""
    tail_share: Target = 900_000
    """The share of the minutes that fit."""
    tail_target: Target = 950_000
    slope_ahead: Annotated[float, Field(ge=0, le=60)] = 2.0
    """How far ahead memory that rises is judged; 0: not at all."""
    surge_window: Annotated[float, Field(ge=0, le=86400)] = 21600.0
    """Room is kept for memory to rise as fast as it did at most in this time; 0: none is kept."""
    surge_ahead: Annotated[float, Field(ge=0, le=60)] = 6.0
    """How long such a rise must find room, until more has come."""
    wish_share: Width = HALF
    """How much of the size more an urgent wish of the guest asks for; the second in a row asks for twice as much."""

    def make(self) -> Policy:
        return Utilisation(
            self.cpu_target,
            self.memory_target,
            self.load_target,
            self.memory_margin,
            Zones(self.cpu_stable_zone, self.cpu_mixed_zone),
            Zones(self.memory_stable_zone, self.memory_mixed_zone),
            self.window,
            LoadTail(self.tail_window, self.tail_share, self.tail_target),
            Surges(self.surge_window, self.surge_ahead),
            self.slope_ahead,
            self.wish_share,
        )


class LoadAverageArgs(Settings):
    """Thresholds as load for each CPU."""

    high: Ratio = 0.9
    low: Ratio = 0.4

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The half of a size that is just too large must not be too small."""
        low, high = found.get("low"), found.get("high")
        if low is not None and high is not None and low * 2 > high:
            yield "low", f"must be at most half of high: {low:g} is above {high / 2:g}"

    def make(self) -> Policy:
        return LoadAverage(self.high, self.low)


class PressureArgs(Settings):
    """Thresholds in per cent of the time; a step as a share of the size."""

    cpu_some: Percent = 40.0
    cpu_full: Percent = 10.0
    memory_some: Percent = 10.0
    memory_full: Percent = 5.0
    step: Width = 250_000

    def make(self) -> Policy:
        return Pressure(self.cpu_some, self.cpu_full, self.memory_some, self.memory_full, self.step)


class Choice(Settings):
    """One policy of a list."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    args: dict[str, Any] = Field(default_factory=dict)


class PolicyRegistry(FactoryRegistry[Factory]):
    def __init__(self, *, has_plugins: bool = False) -> None:
        """With plugins, `plugin:NAME` is a policy with any name: the plugin may register at any time."""
        rule = "a name is made of a-z, 0-9, dot and hyphen, at most 63"
        super().__init__("policy", _NAME.fullmatch, rule)
        self.has_plugins = has_plugins

    def build(self, name: str, args: Mapping[str, Any]) -> Policy:
        """The policy of that name. Raises `FaultsError` for bad args, `RegistryError` for all else."""
        if name.startswith(PREFIX):
            return self._plugin(name.removeprefix(PREFIX), args)
        factory = self.get(name)
        try:
            policy = factory(args)
        except FaultsError:
            raise
        except Exception as error:
            raise RegistryError(f"policy {name!r}: {str(error) or repr(error)}") from error
        if isinstance(policy, type) or not callable(getattr(policy, "goal", None)):
            raise RegistryError(f"policy {name!r}: its factory made no policy but {policy!r}")
        return policy if isinstance(policy, _OURS) else Guarded(name, policy)

    def _plugin(self, name: str, args: Mapping[str, Any]) -> Policy:
        if not self.has_plugins:
            raise RegistryError(f"policy {PREFIX + name!r}: needs plugins.directory in the agent's settings")
        if not is_plugin_name(name):
            raise RegistryError(f"policy {PREFIX + name!r}: the plugin's name {NAME_RULE}")
        return PluginPolicy(name, dict(args))


_OURS: Final = (LoadAverage, Pressure, Utilisation)


def _of(model: type[UtilisationArgs | LoadAverageArgs | PressureArgs]) -> Factory:
    return lambda args: check(dict(args), model).make()


def standard(
    entries: Iterable[metadata.EntryPoint] | None = None, *, has_plugins: bool = False
) -> PolicyRegistry:
    """Our policies and those of installed distributions, and with plugins those too. Raises `RegistryError` if two use
    one name."""
    found = PolicyRegistry(has_plugins=has_plugins)
    found.register("utilisation", _of(UtilisationArgs))
    found.register("load-average", _of(LoadAverageArgs))
    found.register("pressure", _of(PressureArgs))
    for entry in metadata.entry_points(group=POLICY_GROUP) if entries is None else entries:
        found.add_entry_point(entry)
    return found


def build(data: object, registry: PolicyRegistry, path: str = "policies") -> Combined:
    """The policies of a configuration's list. Raises `FaultsError` with every fault, each with its path."""
    if not isinstance(data, list | tuple) or not data:
        raise FaultsError([f"{path}: must be a list of policies, such as [utilisation], and not empty"])
    if len(data) > MAX_POLICIES:
        raise FaultsError([f"{path}: has {len(data)} policies, more than {MAX_POLICIES}"])
    faults: list[str] = []
    found: dict[str, Policy] = {}
    seen: set[str] = set()
    for index, item in enumerate(data):
        place = f"{path}[{index}]"
        entry = {"name": item} if isinstance(item, str) else item
        try:
            check(entry, Choice)
        except FaultsError as error:
            faults += error.below(place)
        if not isinstance(entry, Mapping):
            continue
        name, args = entry.get("name"), entry.get("args", {})
        if not isinstance(name, str) or not name or not isinstance(args, Mapping):
            continue
        if name in seen:
            faults.append(f"{place}.name: {name!r} is used more than once")
            continue
        seen.add(name)
        try:
            found[name] = registry.build(name, args)
        except FaultsError as error:
            faults += error.below(f"{place}.args")
        except RegistryError as error:
            faults.append(f"{place}: {error}")
    if faults:
        raise FaultsError(faults)
    return Combined(tuple(found.items()))


def faults_of(data: object, registry: PolicyRegistry, path: str = "policies") -> list[str]:
    """The faults of a configuration's list, for `Settings.cross_faults`."""
    try:
        build(data, registry, path)
    except FaultsError as error:
        return error.faults
    return []


@dataclass(frozen=True, slots=True)
class Guarded:
    """A policy of another distribution: its errors and wrong results do not stop other policies."""

    name: str
    policy: Policy

    @property
    def is_tied(self) -> bool:
        return getattr(self.policy, "is_tied", False) is True

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The result of the policy for each resource, if that is a valid one."""
        try:
            return checked(self.name, self.policy.goal(load, sizing))
        except Exception as error:  # noqa: BLE001 - an error of an outside policy is its word, not our fault
            failed = ResourceGoal(None, f"policy {self.name} failed: {_text(error)}")
            return Goal(failed, failed)


def checked(name: str, result: object) -> Goal:
    """The result of an outside policy, for each resource if that is a valid goal; else None and the reason."""
    if not isinstance(result, Goal):
        nothing = _no_goal(name, result)
        return Goal(nothing, nothing)
    return Goal(_checked(name, result.cpu), _checked(name, result.memory))


def _checked(name: str, goal: object) -> ResourceGoal:
    match goal:
        case ResourceGoal(None, reason):
            return ResourceGoal(None, _text(reason))
        case ResourceGoal(units, reason, parts) if units is not None and _is_count(units):
            return ResourceGoal(min(units, MAX_UNITS), _text(reason), _parts(units, parts))
        case _:
            return _no_goal(name, goal)


def _no_goal(name: str, result: object) -> ResourceGoal:
    return ResourceGoal(None, f"policy {name} returned no goal but {_text(repr(result))}")


def _parts(units: int, parts: object) -> tuple[GoalPart, ...]:
    """Its parts, if the first of them is the goal: else they explain nothing."""
    listed = tuple(parts)[:MAX_PARTS] if isinstance(parts, tuple | list) else ()
    if not listed or not all(isinstance(part, GoalPart) for part in listed) or listed[0].units != units:
        return ()
    if any(part.units is not None and not (_is_count(part.units) and part.units <= units) for part in listed):
        return ()
    return tuple(
        GoalPart(
            _text(part.policy),
            None if part.units is None else min(part.units, MAX_UNITS),
            _text(part.reason),
        )
        for part in listed
    )


def _is_count(units: object) -> bool:
    return type(units) is int and units >= 0


def _text(value: object) -> str:
    return clean(str(value), MAX_TEXT)
