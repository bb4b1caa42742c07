"""The configured chain: all faults at once with their paths, what tells one from another, its start and its end."""

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from hosting.registry import RegistryError
from hosting.settings import FaultsError, SettingsError
from scheduler.permits.core.core import Core
from scheduler.permits.core.state import SchedulerConfig
from scheduler.pools.chain.config import (
    ChainConfig,
    Named,
    PluginRegistry,
    build_chain,
    standard,
)
from scheduler.pools.chain.plugin import Handle, PoolHandle, ProviderSet
from scheduler.pools.service import PoolService
from tests.support.virtual_time import now_s, virtually
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.scheduler_permits.service_worlds import INSTANCE
from tests.unit.scheduler_pools.pool_talkers import HANDLE
from tests.unit.scheduler_pools.pool_worlds import Doorman

FILE = Path("config.yaml")
Factory = Callable[[Handle, ProviderSet, Any], Any]


class ListedError(ValueError):
    """An error of a factory with several faults."""

    def __init__(self) -> None:
        super().__init__("2 faults")
        self.faults = ["limit: is required", "teams[0]: must be a text"]


def refuses(error: Exception) -> Factory:
    def factory(handle: Handle, providers: ProviderSet, args: Any) -> Any:
        raise error

    return factory


def registry(**factories: Factory) -> PluginRegistry:
    """The plugins of which a chain may be built."""
    found = PluginRegistry()
    for name, factory in factories.items():
        found.register(name, factory)
    return found


def _raise(error: Exception) -> Any:
    raise error


def door(label: str) -> Factory:
    return lambda *_: Doorman(label=label)


def faults(config: ChainConfig, known: PluginRegistry) -> list[str]:
    with pytest.raises(FaultsError) as caught:
        build_chain(config, known, HANDLE)
    return caught.value.faults


def test_a_chain_is_built_in_its_order() -> None:
    heard: list[tuple[Any, Any, Any]] = []

    def factory(handle: Handle, providers: ProviderSet, args: Any) -> Doorman:
        heard.append((handle, providers, args))
        return Doorman(label="b")

    config = ChainConfig((Named("b", {"x": 1}), Named("a")))
    manager = build_chain(config, registry(a=door("a"), b=factory), HANDLE)
    assert manager.names == ("b", "a")
    handle, providers, args = heard[0]
    assert (handle, type(providers), args) == (HANDLE, ProviderSet, {"x": 1})


def test_one_plugin_may_be_there_several_times_under_names_of_its_own() -> None:
    heard: list[Handle] = []

    def factory(handle: Handle, providers: ProviderSet, args: Any) -> Doorman:
        heard.append(handle)
        return Doorman(label="door")

    host = PoolHandle(cast("Any", "client"), cast("Any", "cache"), recorded()[0])
    named = (Named("a", 1), Named("a", 2, "front"), Named("a", 3, "back"))
    manager = build_chain(ChainConfig(named), registry(a=factory), host)
    assert manager.names == ("door", "front", "back")
    assert heard[0] is host
    assert {(str(handle.client), str(handle.cache)) for handle in heard} == {("client", "cache")}
    twice = (*named, Named("a", 4), Named("b", 5, "back"), Named("b", 6, "a"))
    with pytest.raises(FaultsError) as caught:
        build_chain(ChainConfig(twice), registry(a=factory, b=factory), host)
    assert caught.value.faults == [
        "pools.plugins[3].name: 'a' is there already, as pools.plugins[0]; give each an instance of its own",
        "pools.plugins[4].instance: 'back' is there already, as pools.plugins[2]; give each an instance of its own",
        "pools.plugins[5].instance: 'a' is there already, as pools.plugins[0]; give each an instance of its own",
    ]
    assert len({ChainConfig((Named("a", 1, each),)).fingerprint for each in ("", "x", "y")}) == 3


def test_all_faults_are_told_at_once_with_their_paths() -> None:
    known = registry(a=door("a"), listed=refuses(ListedError()), told=refuses(ValueError("two\n lines")))
    config = ChainConfig((Named("quote"), Named("a"), Named("listed", {}), Named("a"), Named("told")))
    found = faults(config, known)
    assert [fault.split(": ")[0] for fault in found] == [
        "pools.plugins[0].name",
        "pools.plugins[2].args.limit",
        "pools.plugins[2].args.teams[0]",
        "pools.plugins[3].name",
        "pools.plugins[4].args",
    ]
    assert "'quote' is not registered (there are: a, listed, told)" in found[0]
    assert "pools.plugins[1]" in found[3]
    assert "\n" not in "".join(found)


def test_a_plugin_whose_name_fails_is_a_fault() -> None:
    class Nameless(Doorman):
        def name(self) -> str:
            raise RuntimeError("I have none")

    (fault,) = faults(ChainConfig((Named("a"),)), registry(a=lambda *_: Nameless()))
    assert "I have none" in fault


def test_the_plugins_that_are_shipped_are_known() -> None:
    assert {"quota", "http-admission"} <= set(standard().names())
    (fault,) = faults(ChainConfig((Named("quota", {"nonsense": 1}),)), standard())[:1]
    assert fault.startswith("pools.plugins[0].args")


# ------------------------------------------------------------ what tells one from another

CHANGES = {
    "another plugin": ChainConfig((Named("b"),)),
    "one more": ChainConfig((Named("a"), Named("b"))),
    "args": ChainConfig((Named("a", {"limit": 1}),)),
    "other args": ChainConfig((Named("a", {"limit": 2}),)),
    "args of another kind": ChainConfig((Named("a", {"limit": "1"}),)),
    "true is no one": ChainConfig((Named("a", {"limit": True}),)),
    "a key of another kind": ChainConfig((Named("a", {"1": "x"}),)),
    "a number as key": ChainConfig((Named("a", {1: "x"}),)),
    "a day": ChainConfig((Named("a", {"since": dt.date(2026, 1, 1)}),)),
    "the text of a day": ChainConfig((Named("a", {"since": "2026-01-01"}),)),
    "keys of two kinds": ChainConfig((Named("a", {1: "x", "b": "y"}),)),
    "a day as key": ChainConfig((Named("a", {dt.date(2026, 1, 1): 1}),)),
    "an empty mapping": ChainConfig((Named("a", {}),)),
    "another order": ChainConfig((Named("b"), Named("a"))),
    "nothing": ChainConfig(),
}


def test_every_change_of_plugins_is_told() -> None:
    prints = {name: config.fingerprint for name, config in CHANGES.items()}
    prints["first"] = ChainConfig((Named("a"),)).fingerprint
    assert len(set(prints.values())) == len(prints), prints


def test_the_order_of_keys_and_the_cool_down_are_no_change() -> None:
    one = ChainConfig((Named("a", {"x": 1, "y": {"p": 1, "q": 2}}),), cooldown_s=5)
    other = ChainConfig((Named("a", {"y": {"q": 2, "p": 1}, "x": 1}),), cooldown_s=9)
    assert one.fingerprint == other.fingerprint


# ------------------------------------------------------------ its life in a process


class Lively(Doorman):
    """Notes its life in `life`."""

    def __init__(self, label: str, life: list[str], fault: Exception | None = None) -> None:
        super().__init__(label=label)
        self.life = life
        self.fault = fault

    async def start(self, _: Handle) -> None:
        self.life.append(f"start {self.label}")
        await asyncio.sleep(0.1)
        if self.fault is not None:
            raise self.fault

    def stop(self) -> None:
        self.life.append(f"stop {self.label}")


class Process:
    """A pool service whose registry has `a`, `b` and a `sick` one."""

    def __init__(self) -> None:
        self.life: list[str] = []
        log, self.lines = recorded()
        lines: Lines = self.lines
        assert lines == []
        core = Core(SchedulerConfig(INSTANCE, is_first_start=True))
        life = self.life
        known = registry(
            a=lambda *_: Lively("a", life),
            b=lambda *_: Lively("b", life),
            sick=lambda *_: Lively("sick", life, RuntimeError("no connection")),
        )
        self.pools = PoolService(core, core.apply, now_s, log, registry=lambda: known)

    async def configure(self, *names: str) -> None:
        await self.pools.configure(ChainConfig(tuple(map(Named, names))), FILE)


@virtually
async def test_the_old_chain_ends_when_the_new_one_has_started() -> None:
    process = Process()
    await process.configure("a")
    await process.configure("a")
    assert process.life == ["start a"]
    await process.configure("b", "a")
    await process.pools.close()
    assert process.life[1:3] == ["start b", "start a"]
    assert sorted(process.life[3:]) == ["stop a", "stop a", "stop b"]


@virtually
async def test_a_chain_that_does_not_start_leaves_the_old_one_in_force_and_nothing_running() -> None:
    process = Process()
    await process.configure("a")
    with pytest.raises(SettingsError) as caught:
        await process.configure("b", "sick")
    assert caught.value.faults == ['pools.plugins: plugin "sick" start: no connection']
    assert process.pools._manager.names == ("a",)
    assert process.life[1:] == ["start b", "start sick", "stop b"], "what was started is stopped again"
    await process.pools.close()
    assert process.life[-1] == "stop a"


@virtually
async def test_two_distributions_with_one_name_are_a_fault_of_the_configuration() -> None:
    process = Process()
    process.pools._registry = lambda: _raise(RegistryError("pool plugin 'a' is registered already"))
    with pytest.raises(SettingsError, match="registered already"):
        await process.configure("a")
    await process.pools.close()
