"""docs/guides/pools.md and docs/reference/pool-plugins.md say what holds: its tables against the code, and the examples that it points to."""

import asyncio
import dataclasses
import enum
import functools
import inspect
import re
import types
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from hosting import logs
from hosting.settings import Settings, load
from parley import plugins
from protocol.reasons import ReasonCode
from protocol.values import Resources
from protocol.wire import PodName
from scheduler import ports
from scheduler.clusters.file import ClusterFile
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import POOL_LABEL
from scheduler.permits.core.state import SchedulerConfig
from scheduler.permits.service.config_file import Config
from scheduler.pools.chain import calls, config, manager
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.plugin import HOOKS, Handle
from scheduler.pools.core import admission_state, errors, queues
from scheduler.pools.core.values import Context, Measures, Member, Pool, Purpose, VmRequest
from scheduler.pools.entry import PoolEntry
from scheduler.pools.service import pool_families
from scheduler.pools.shipped.elastic_quota import ElasticQuotaPoolArgs
from scheduler.pools.shipped.http_admission import HttpAdmissionArgs
from scheduler.pools.shipped.http_messages import outcome, question
from scheduler.pools.shipped.quota_args import QuotaArgs
from tests.support.reference.metrics import shown
from tests.tidy.repository import ROOT

PAGE = "\n".join(
    (ROOT / name).read_text() for name in ("docs/guides/pools.md", "docs/reference/pool-plugins.md")
)

# The index of seed 000. Hooks are those of `Plugin` and of `BasePlugin`.
FUNCTIONS = (
    "NewInsufficientResources NewInternal NewInvalidSpec Register Get Build KindFromAppError NewPluginManager "
    "ProbeAcceptedReplicas"
)
TYPES = (
    "BasePlugin Factory Plugin PluginErrorKind PluginManager ProbeResult ProbeResultKind "
    "domain.AppError framework.Handle framework.Args providerset.Set agentsv1alpha1.SandboxPool"
)
CONSTANTS = (
    "PluginErrKindUnknown PluginErrKindInsufficientResources PluginErrKindInternal PluginErrKindInvalidSpec "
    "ProbeOK ProbeInsufficientResources ProbeInternalError ProbeInvalidSpec"
)
SEED_HOOKS = "Name Start PreCreatePool PreUpdatePool PreDeletePool PreCreatePod"
METHODS = " ".join(
    [
        *(f"{owner}.{hook}" for owner in ("Plugin", "BasePlugin") for hook in SEED_HOOKS.split()),
        *(
            f"PluginManager.{name}"
            for name in ["Start", "PreCreatePool", "PreUpdatePool", "PreDeletePool", "PreCreatePodHooks"]
        ),
        *(f"ProbeResult.{name}" for name in ["Kind", "Accepted", "Err"]),
    ]
)
SEED = f"{FUNCTIONS} {TYPES} {CONSTANTS} {METHODS}".split()


def table(first: str) -> list[list[str]]:
    """The rows below the header whose first cell is `first`, as cells."""
    lines = iter(PAGE.splitlines())
    header = next(line for line in lines if line.startswith(f"| {first} |"))
    assert set(next(lines)) <= set("|-"), header
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names(header: str) -> list[str]:
    return [name for row in table(header) for name in code(row[0])]


def exists(name: str) -> bool:
    """Whether `parley.plugins` has it: a name, or something of a type there (a method, a field, a parameter)."""
    found: Any = plugins
    for part in name.split("."):
        if not hasattr(found, part):
            return inspect.isclass(found) and part in inspect.signature(found).parameters
        found = getattr(found, part)
    return True


def block(first_line: str) -> str:
    found = re.search(rf"^```\w+\n({re.escape(first_line)}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, first_line
    return found[1]


# ------------------------------------------------------------ the table of names


def test_every_name_of_the_seed_is_in_the_table_and_nothing_else() -> None:
    listed = [name for row in table("Seed 000") for name in code(row[0])]
    results = {
        "updated",
        "err",
        "context.Context",
        "[]corev1.Pod",
        "corev1.Pod",
        "PreUpdatePool",
        "PreCreatePod",
    }
    assert sorted(set(listed) - results) == sorted(SEED)
    assert results <= set(listed)


def test_every_name_of_ours_in_the_table_exists() -> None:
    ours = [name for row in table("Seed 000") for name in code(row[1])]
    assert len(ours) > len(SEED)
    assert [name for name in ours if not exists(name)] == []
    beyond = PAGE.split("Beyond the seed", 1)[1].split("## Hooks", 1)[0]
    assert [name for name in code(beyond) if not exists(name)] == []


def test_every_row_has_a_name_of_ours() -> None:
    assert [row for row in table("Seed 000") if not code(row[1])] == []


def test_the_look_up_knows_what_is_not_there() -> None:
    assert not exists("PluginManger")
    assert not exists("Plugin.pre_create_pools")
    assert not exists("ProbeResult.kinds")
    assert exists("ProbeResult.kind")
    assert exists("AppError.biz_code")


# ------------------------------------------------------------ the reference


def fields(*types: Any) -> set[str]:
    """The fields of data classes, as authors see them."""
    return {each.name for kind in types for each in dataclasses.fields(kind)}


def test_the_hooks_are_all_there() -> None:
    assert {name.split("(")[0] for name in names("Hook")} == set(HOOKS)
    written = set(names("Hook"))
    for hook in HOOKS:
        parameters = list(inspect.signature(getattr(plugins.BasePlugin, hook)).parameters)[1:]
        assert f"{hook}({', '.join(parameters)})" in written
    purposes = [name for row in table("Hook") for name in code(row[2])]
    assert set(purposes) == {purpose.value for purpose in Purpose}


def test_the_fields_are_all_there() -> None:
    def below(title: str) -> set[str]:
        """The first column of the table that follows these words."""
        rows = PAGE.split(title, 1)[1].split("\n\n", 2)[1].splitlines()
        return {name for row in rows for name in code(row.split(" | ")[0])}

    assert below("`Context`:") == fields(Context) | {"request"}
    assert below("\n`Pool`:") == fields(Pool)
    of_vms = below("one for each VM that wants to grow:")
    assert of_vms - {"pod.namespace"} == fields(Member, VmRequest)
    assert set(names("`Admission`")) == fields(plugins.Admission)


def test_the_codes_are_classified_as_the_page_says() -> None:
    listed: dict[int, str] = {}
    for codes, kind in table("Code"):
        listed |= {int(number): code(kind)[0] for number in re.findall(r"\d{3}", codes)}
    assert listed
    for number in range(400, 600):
        kind = plugins.kind_from_app_error(plugins.AppError(number, ""))
        assert kind.value == listed.get(number, "Internal"), number


def test_the_constructors_give_the_codes_and_kinds_of_the_page() -> None:
    seen = set()
    for constructors, codes, kind in table("Constructor"):
        functions = [name.split("(")[0] for name in code(constructors)]
        for function, number in zip(functions, codes.split(", "), strict=True):
            error = getattr(plugins, function)("no")
            assert error.code == int(number), function
            if code(kind):
                assert plugins.kind_from_app_error(error).value == code(kind)[0]
            else:
                assert error.detail is None
            seen.add(function)
    made = (types.FunctionType, functools.partial)
    offered = {name for name in dir(plugins) if isinstance(getattr(plugins, name), made)}
    others = {
        "build",
        "get",
        "register",
        "kind_from_app_error",
        "new_plugin_manager",
        "probe_accepted_replicas",
    }
    assert seen == offered - others


def test_the_figures_are_those_of_the_code() -> None:
    prose = " ".join(PAGE.split())
    for sentence in (
        f"`{POOL_LABEL}`",
        f"{manager.PLUGIN_TIMEOUT_S:g} s for one hook of one plugin; {ports.ADMISSION_DEADLINE_S:g} s for a request",
        f"cancellation {calls.MAX_ABANDONED} times over",
        f"`stop` have {manager.START_TIMEOUT_S:g} s each",
        f"asked about together, up to {queues.MAX_BATCH}",
        f"`pools.cooldown` ({admission_state.COOLDOWN_S:g} seconds)",
        f"at most {errors.MAX_MESSAGE} characters",
        f"`{config.PLUGIN_GROUP}`",
    ):
        assert sentence in prose, sentence


def test_the_metrics_are_those_that_are_served() -> None:
    counts = PoolStats()
    no_room = cast("Any", None)  # there are no pools to look for
    served = {
        shown(each): list(each.labels)
        for each in pool_families(Core(SchedulerConfig(uuid.UUID(int=1))).ledger, no_room, counts)
    }
    assert {code(row[0])[0]: code(row[1]) for row in table("Name")} == served


def aliases(model: type[Settings]) -> list[str]:
    return [each.alias or name for name, each in model.model_fields.items()]


@pytest.mark.parametrize(
    ("plugin", "model"),
    [("quota", QuotaArgs), ("elastic-quota", ElasticQuotaPoolArgs), ("http-admission", HttpAdmissionArgs)],
)
def test_the_arguments_of_our_plugins_are_all_there(plugin: str, model: type[Settings]) -> None:
    assert sorted(names(f"Argument of `{plugin}`")) == sorted(aliases(model))


def test_the_fields_of_a_written_pool_are_all_there() -> None:
    assert names("Field") != []
    part = PAGE.split("\n## Pools: file, HTTP, state", 1)[1]
    listed = re.findall(r"^\| (`[^|]*) \|", part.split("| Request |")[0], re.MULTILINE)
    assert {name for cell in listed for name in code(cell)} == set(aliases(PoolEntry))


def test_the_question_to_the_service_has_the_fields_of_the_page() -> None:
    asked = yaml.safe_load(block('{"version": 1, "hook": "update", "purpose": "probe", "question": "5f0c",'))
    pool, vm = asked["pool"], asked["requests"][0]
    unit = Resources(1000, 2**30)
    request = VmRequest(PodName("a", "b"), "u", "n", {}, unit, unit, 1, 2)
    sent = yaml.safe_load(question("update", Context(Purpose.PROBE, (request,)), Pool("p", unit), (), False))
    assert list(sent) == list(asked)
    assert list(sent["pool"]) == list(pool)
    assert list(sent["requests"][0]) == list(vm)
    assert sent["pool"]["limits"].keys() == pool["limits"].keys()


def test_the_outcome_for_the_service_has_the_fields_and_the_sums_of_the_page() -> None:
    told = yaml.safe_load(block('{"version": 1, "hook": "outcome", "question": "5f0c",'))
    pool = Pool("databases", Resources(1000, 4 * 2**30), uid="0c1e", generation=1, replicas=5)
    assert yaml.safe_load(outcome(plugins.ProbeEnd("5f0c", pool, 6, 5, 2))) == told


def test_the_handle_has_what_the_page_says() -> None:
    told = {name.split("(")[0] for row in table("`handle`") for name in code(row[0])}
    offered = {
        f"{part}.{name}"
        for part, port in (("cache", plugins.Cache), ("client", plugins.PoolClient))
        for name in vars(port)
        if not name.startswith("_")
    }
    assert told == offered | {"log"}
    assert {part.split(".")[0] for part in told} <= set(vars(plugins.Handle))


def test_the_reasons_are_codes() -> None:
    """Those of the limits, and each one of pools in the table of answers."""
    limits = [name for row in table("#") for name in code(row[2])]
    assert [name for name in limits if name not in set(ReasonCode)] == []
    told = {name for row in table("The chain says") for cell in row[1:] for name in code(cell)}
    assert told == {each.value for each in ReasonCode if each.value.startswith(("pool", "probe"))}


# ------------------------------------------------------------ the code of the page, as far as nothing must run for it


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_code_imports_nothing_else_of_parley() -> None:
    pattern = r"^(?:from|import) ((?:parley|scheduler|hosting|protocol|agent|informant)\b\S*)"
    found = {name for text in blocks("python") for name in re.findall(pattern, text, re.MULTILINE)}
    assert found == {"parley.plugins"}


def test_the_hook_that_waits_waits() -> None:
    space: dict[str, Any] = {}
    exec(block("# waiting.py"), space)

    async def seats_of(team: str) -> int | None:
        if team == "away":
            raise OSError("away")
        return 5

    handle = SimpleNamespace(log=logs.logger("test"))
    plugin = space["Directory"](handle, seats_of)
    asked = functools.partial(Pool, "a", Resources(1000, 2**30))
    answer = asyncio.run(plugin.pre_update_pool(Context(Purpose.PROBE), asked(), ()))
    assert answer.admitted == 5
    with pytest.raises(plugins.AppError) as refused:
        asyncio.run(plugin.pre_update_pool(Context(Purpose.PROBE), asked(labels={"team": "away"}), ()))
    assert plugins.kind_from_app_error(refused.value) is plugins.PluginErrorKind.INTERNAL


# ------------------------------------------------------------ the examples

CHAIN = ROOT / "examples/pool-plugins.yaml"


def built(path: Path) -> tuple[str, ...]:
    """The names of the chain that a configuration describes."""
    handle = cast("Handle", SimpleNamespace(log=logs.logger("test")))
    found = config.build_chain(load(path, Config).pools.config(), config.standard(), handle)
    return found.names


def test_the_example_of_a_chain_is_built() -> None:
    assert built(CHAIN) == ("quota",)


def test_what_is_commented_out_there_is_right_as_well(tmp_path: Path) -> None:
    text = re.sub(r"^    # ", "    ", CHAIN.read_text(), flags=re.MULTILINE)
    (tmp_path / "all.yaml").write_text(text)
    assert built(tmp_path / "all.yaml") == ("quota", "http-admission")


def test_the_snippets_of_our_plugins_are_built(tmp_path: Path) -> None:
    chains = [text for text in blocks("yaml") if text.startswith("pools:\n")]
    assert len(chains) == 4
    found: list[str] = []
    for text in chains:
        (tmp_path / "chain.yaml").write_text(text)
        found += built(tmp_path / "chain.yaml")
    assert found == ["quota", "quota", "elastic-quota", "http-admission"]


def test_the_quota_of_the_page_gives_what_it_says(tmp_path: Path) -> None:
    """`ci` takes 15 of the 16 that it may have; then `dev` gets 5 and was refused 2, and `ci` no more until it is below 13.
    When it is at 8 and wants no more, `dev` may have 12."""
    text = next(text for text in blocks("yaml") if "name: quota" in text)
    (tmp_path / "chain.yaml").write_text(text)
    unit = Resources(1000, 4 * 2**30)
    pools = {name: Pool(name, unit, labels={"parley.dev/tenant": name}) for name in ("ci", "dev")}
    unmet: dict[str, Measures] = {}
    cache = SimpleNamespace(pools=lambda: tuple(pools.values()), unmet_demand=lambda: dict(unmet))
    handle = cast("Handle", SimpleNamespace(log=logs.logger("test"), cache=cache))
    found = config.build_chain(
        load(tmp_path / "chain.yaml", Config).pools.config(), config.standard(), handle
    )

    def admitted(name: str) -> int:
        """How far a pool may grow now."""
        now = pools[name].replicas
        asked = plugins.probe_accepted_replicas(found, pools[name], (), now, 50)
        return asyncio.run(asked).accepted

    def hold(name: str, units: int) -> None:
        pools[name] = pools[name].with_replicas(units)

    assert admitted("ci") == 16
    hold("ci", 15)
    assert admitted("dev") == 5
    hold("dev", 5)
    unmet["dev"] = Measures(2)
    assert admitted("ci") == 15
    for units, most in ((14, 14), (13, 13), (12, 13)):
        hold("ci", units)
        assert admitted("ci") == most
    hold("ci", 8)
    assert admitted("dev") == 12


def test_the_quota_by_amounts_of_the_page_gives_what_it_says(tmp_path: Path) -> None:
    """`builds` wants 20 CPUs and 32 GiB of what can be lent, so `caches` may borrow two thirds of the memory."""
    *_, text = (text for text in blocks("yaml") if "name: quota" in text)
    (tmp_path / "chain.yaml").write_text(text)
    gib, unit = 2**30, Resources(1000, 2**30)
    labels = {name: {"parley.dev/tenant": name} for name in ("builds", "caches")}
    builds = Pool("builds", unit, labels=labels["builds"], replicas=20, amount=Resources(20_000, 20 * gib))
    unmet = {"builds": Measures(0, Resources(0, 12 * gib))}
    cache = SimpleNamespace(pools=lambda: (builds,), unmet_demand=lambda: unmet)
    handle = cast("Handle", SimpleNamespace(log=logs.logger("test"), cache=cache))
    found = config.build_chain(
        load(tmp_path / "chain.yaml", Config).pools.config(), config.standard(), handle
    )
    caches = Pool("caches", unit, labels=labels["caches"], replicas=99, amount=Resources(0, 80 * gib))
    assert found.limits_amounts(caches)
    (cap,) = asyncio.run(found.pre_update_pool(Context(Purpose.PROBE), caches, ())).amounts
    assert (cap.resource, cap.most) == ("memory", 16 * gib - -128 * gib // 3)


def test_the_elastic_quota_of_the_page_gives_what_it_says(tmp_path: Path) -> None:
    """`ci` alone may have 8 CPUs; with 8 there, `dev` gets 2 of its 5, and the rest as `ci` shrinks."""
    text = next(text for text in blocks("yaml") if "name: elastic-quota" in text)
    (tmp_path / "chain.yaml").write_text(text)
    unit = Resources(1000, 2**30)
    pools: dict[str, Pool] = {}
    cache = SimpleNamespace(pools=lambda: tuple(pools.values()), unmet_demand=dict)
    handle = cast("Handle", SimpleNamespace(log=logs.logger("test"), cache=cache))
    found = config.build_chain(
        load(tmp_path / "chain.yaml", Config).pools.config(), config.standard(), handle
    )

    def most(name: str, cpus: int) -> list[int]:
        asked = Pool(name, unit, amount=Resources(cpus * 1000, 0))
        answer = asyncio.run(found.pre_update_pool(Context(Purpose.PROBE), asked, ()))
        return [cap.most for cap in answer.amounts]

    assert most("ci", 9) == [8000]
    for held, got in ((8, [2000]), (6, [4000]), (5, [])):
        pools["ci"] = Pool("ci", unit, amount=Resources(held * 1000, 0))
        assert most("dev", 5) == got


def test_the_plugin_that_limits_amounts_does_so() -> None:
    space: dict[str, Any] = {}
    exec(block("# heavy.py"), space)
    plugin, unit = space["Heavy"](), Resources(1000, 2**30)
    pools = [
        Pool("p", unit, labels=labels, replicas=99, amount=unit * units)
        for labels, units in (({}, 99), ({"tier": "cache"}, 64), ({"tier": "cache"}, 65))
    ]
    assert [plugin.limits_amounts(pool) for pool in pools] == [False, True, True]
    answers = [plugin.pre_update_pool(Context(Purpose.PROBE), pool, ()) for pool in pools]
    assert [[cap.most for cap in answer.amounts] for answer in answers] == [[], [], [64 * 2**30]]


def test_the_example_of_pools_fits_the_example_of_a_chain() -> None:
    """Every pool has a tenant that may own pools, and every VM a pool that is there."""
    cluster = load(ROOT / "examples/pools.yaml", ClusterFile)
    (quota,) = load(CHAIN, Config).pools.plugins
    parents = {tenant.get("parent") for tenant in quota.args["tenants"]}
    leaves = {tenant["name"] for tenant in quota.args["tenants"]} - parents
    assert cluster.pools
    assert {pool.labels["parley.dev/tenant"] for pool in cluster.pools} <= leaves
    assert {vm.labels[POOL_LABEL] for vm in cluster.vms} == {pool.name for pool in cluster.pools}


def test_every_kind_is_on_the_page() -> None:
    kinds: type[enum.Enum] = plugins.PluginErrorKind
    assert [kind.value for kind in kinds if f"`{kind.value}`" not in PAGE and kind.value] == []
