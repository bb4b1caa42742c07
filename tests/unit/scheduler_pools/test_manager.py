"""The chain: its order and its sums, and that no plugin breaks what is around it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from protocol.values import Resources
from scheduler.pools.chain.calls import PoolStats
from scheduler.pools.chain.manager import PluginManager, new_plugin_manager
from scheduler.pools.chain.plugin import BasePlugin
from scheduler.pools.core.errors import AppError, new_insufficient_resources
from scheduler.pools.core.values import (
    ADMITTED,
    POD_ADMITTED,
    Admission,
    Context,
    PodAdmission,
    Pool,
    PoolLimits,
)
from tests.unit.scheduler_pools.pool_talkers import (
    CTX,
    FULL,
    HANDLE,
    HOOKS,
    POOL,
    UNIT,
    Say,
    Talker,
    ask,
    asking,
    is_internal,
    labelled,
    later,
    raising,
)

# ------------------------------------------------------------ no plugins


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_chain_of_none_admits_without_a_copy(hook: str) -> None:
    chain = PluginManager()
    assert not chain
    assert await asking(chain, hook) is ADMITTED
    assert await chain.pre_create_pod_hooks(CTX, {}, POOL) is POD_ADMITTED
    await chain.start(HANDLE)
    await chain.stop()
    assert (chain.names, chain.abandoned) == ((), 0)


def test_a_new_manager_of_none_is_none() -> None:
    assert new_plugin_manager() is None
    assert new_plugin_manager(timeout_s=1.0) is None
    made = new_plugin_manager(BasePlugin(), timeout_s=1.0)
    assert made
    assert made.names == ("base",)


@pytest.mark.parametrize("name", ["", None, 7, ["quota"]])
def test_a_plugin_must_have_a_name_that_is_a_text(name: Any) -> None:
    with pytest.raises(ValueError, match="Talker"):
        PluginManager(Talker(name))


# ------------------------------------------------------------ the fold


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("coroutines", range(8))
async def test_plugins_are_asked_in_their_order_and_see_what_was_changed(hook: str, coroutines: int) -> None:
    heard: list[str] = []
    says: list[Say] = [labelled(one="1"), lambda _: ADMITTED, labelled(two="2")]
    mixed = [later(say) if coroutines & 1 << number else say for number, say in enumerate(says)]
    plugins = [Talker(name, say, heard) for name, say in zip("abc", mixed, strict=True)]
    found = await ask(hook, *plugins)
    assert heard == ["a", "b", "c"]
    assert [dict(plugin.seen[0][0].labels) for plugin in plugins] == [
        {"team": "a"},
        {"team": "a", "one": "1"},
        {"team": "a", "one": "1"},
    ]
    assert found == Admission(pool=replace(POOL, labels={"team": "a", "one": "1", "two": "2"}))
    assert [plugin.seen[0][1] for plugin in plugins] == [CTX] * 3


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("how", [raising, lambda error: lambda _: Admission(error=error)])
@pytest.mark.parametrize("when", [later, lambda say: say])
async def test_the_first_error_ends_it_unchanged(
    hook: str, how: Callable[[AppError], Say], when: Callable[[Say], Say]
) -> None:
    plugins = [Talker("a", labelled(one="1")), Talker("b", when(how(FULL))), Talker("c")]
    found = await ask(hook, *plugins)
    assert found.error is FULL
    assert (found.plugin, found.updated) == ("b", True)
    assert plugins[2].seen == []


async def test_a_change_that_is_taken_back_is_none() -> None:
    back = Talker("b", lambda _: Admission(pool=POOL))
    assert not (await ask("pre_update_pool", Talker("a", labelled(one="1")), back)).updated
    assert not (await ask("pre_update_pool", back)).updated


async def test_caps_and_waits_are_merged_over_the_chain() -> None:
    found = await ask(
        "pre_update_pool",
        Talker("a", lambda _: Admission(admitted=4, reason="Four", retry_after_s=9.0)),
        Talker("b", later(lambda _: Admission(admitted=2, reason="Two", retry_after_s=1.0, plugin="z"))),
        Talker("c", lambda _: Admission(admitted=0, error=FULL)),
        Talker("d", lambda _: Admission(retry_after_s=99.0)),
    )
    assert found == Admission(None, 0, 9.0, "", "", FULL, "c")


async def test_no_plugin_can_take_members_away_from_the_next() -> None:
    class Emptying(Talker):
        def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Any) -> Any:
            super().pre_update_pool(ctx, new_pool, list(pods))
            pods.clear()
            return ADMITTED

    pods: Any = ["one", "two"]
    last = Talker("b")
    await PluginManager(Emptying("a"), last).pre_update_pool(CTX, POOL, pods)
    assert pods == ["one", "two"]
    assert all(list(seen[2]) == pods for seen in last.seen)


# ------------------------------------------------------------ failures


class Unreadable:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("when", [later, lambda say: say], ids=["coroutine", "plain"])
async def test_an_error_without_a_text_is_internal(when: Callable[[Say], Say]) -> None:
    error = AppError(503, cast("str", Unreadable()))
    assert is_internal(await ask("pre_update_pool", Talker("a", when(raising(error)))), "a")


class Odd(BaseException):
    """Such as the control exceptions of other frameworks."""


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("when", [later, lambda say: say], ids=["coroutine", "plain"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        KeyError("secret"),
        OSError(5, "secret"),
        AssertionError(),
        RecursionError("secret"),
        MemoryError(),
        StopIteration("secret"),
        ExceptionGroup("secret", [ValueError("secret")]),
        asyncio.CancelledError("secret"),
        asyncio.InvalidStateError("secret"),
        GeneratorExit("secret"),
        SystemExit(3),
        KeyboardInterrupt("secret"),
        Odd("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_plugin_raises_is_internal_and_no_secret_leaves(
    hook: str, when: Callable[[Say], Say], error: BaseException
) -> None:
    after = Talker("c")
    found = await ask(hook, Talker("a", labelled(one="1")), Talker("b", when(raising(error))), after)
    assert is_internal(found, "b")
    assert found.error is not None
    assert found.error.cause is not None
    assert "secret" not in str(found.error)
    assert (found.updated, after.seen) == (True, [])
    assert asyncio.current_task() is not None


async def test_a_coroutine_that_cancels_itself_is_internal() -> None:
    async def give_up(_: object) -> object:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return ADMITTED

    assert is_internal(await ask("pre_update_pool", Talker("a", give_up)), "a")


async def test_a_time_out_of_the_plugins_own_is_not_said_to_be_ours() -> None:
    found = await ask("pre_update_pool", Talker("a", later(raising(TimeoutError("data base")))))
    assert is_internal(found, "a")
    assert "did not answer" not in str(found.error)


@pytest.mark.parametrize("hook", [*HOOKS, "pre_create_pod"])
async def test_a_plugin_without_a_hook_is_internal(hook: str) -> None:
    class Bare:
        def name(self) -> str:
            return "bare"

    chain = PluginManager(cast("Any", Bare()))
    if hook == "pre_create_pod":
        assert is_internal(await chain.pre_create_pod_hooks(CTX, {}, POOL), "bare")
    else:
        assert is_internal(await asking(chain, hook), "bare")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("when", [later, lambda say: say], ids=["coroutine", "plain"])
@pytest.mark.parametrize(
    "answer",
    [None, True, False, 3, "ok", (), (True, None), {}, [], Admission, POOL, FULL, POD_ADMITTED, object()],
    ids=lambda answer: getattr(answer, "__name__", type(answer).__name__),
)
async def test_an_answer_that_is_none_is_internal(
    hook: str, when: Callable[[Say], Say], answer: object
) -> None:
    after = Talker("b")
    assert is_internal(await ask(hook, Talker("a", when(lambda _: answer)), after), "a")
    assert after.seen == []


@pytest.mark.parametrize(
    "fields",
    [
        {"admitted": -1},
        {"admitted": 1.0},
        {"admitted": float("inf")},
        {"admitted": True},
        {"admitted": "3"},
        {"admitted": [3]},
        {"retry_after_s": -1},
        {"retry_after_s": float("nan")},
        {"retry_after_s": float("inf")},
        {"retry_after_s": "soon"},
        {"retry_after_s": True},
        {"retry_after_s": 10**400},
        {"reason": None},
        {"reason": 3},
        {"message": None},
        {"message": b"full"},
        {"error": "full"},
        {"error": ValueError("full")},
        {"error": AppError},
        {"error": False},
        {"pool": {"labels": {}}},
        {"pool": True},
        {"pool": Pool},
        {"pool": replace(POOL, compute_unit=cast("Any", None))},
        {"pool": replace(POOL, compute_unit=cast("Any", (1, 2)))},
        {"pool": replace(POOL, compute_unit=Resources(0, 0))},
        {"pool": replace(POOL, limits=cast("Any", None))},
        {"pool": replace(POOL, limits=PoolLimits(max_units=-1))},
        {"pool": replace(POOL, limits=PoolLimits(max_units_per_vm=0))},
        {"pool": replace(POOL, limits=PoolLimits(min_units=cast("Any", None)))},
        {"pool": replace(POOL, limits=PoolLimits(max_units=3, min_units=4))},
        {"pool": replace(POOL, limits=PoolLimits(max_units_per_vm=cast("Any", "3")))},
        {"pool": replace(POOL, labels=cast("Any", {"team": 3}))},
        {"pool": replace(POOL, annotations=cast("Any", {3: "team"}))},
        {"pool": replace(POOL, finalizers=cast("Any", (3,)))},
    ],
    ids=lambda fields: str(fields)[:30],
)
async def test_garbage_in_any_field_is_internal(fields: dict[str, Any]) -> None:
    after = Talker("b")
    found = await ask("pre_update_pool", Talker("a", lambda _: Admission(**fields)), after)
    assert is_internal(found, "a")
    assert (after.seen, found.updated, found.admitted, found.retry_after_s) == ([], False, None, None)


@pytest.mark.parametrize(
    "wait_s", ["soon", -1.0, float("nan"), float("inf"), True, [], 10**400], ids=lambda w: str(w)[:9]
)
@pytest.mark.parametrize("how", [raising, lambda error: lambda _: Admission(error=error)])
async def test_garbage_in_the_detail_of_an_error_is_internal(
    wait_s: Any, how: Callable[[AppError], Say]
) -> None:
    error = new_insufficient_resources("full", retry_after_s=wait_s)
    found = await ask("pre_update_pool", Talker("a", how(error)))
    assert is_internal(found, "a")
    assert found.retry_after_s is None


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "fields",
    [{"name": "red"}, {"uid": "other"}, {"generation": 3}, {"replicas": 4}, {"is_deleting": True}],
    ids=str,
)
async def test_what_is_not_a_plugins_to_change_is_internal(hook: str, fields: dict[str, Any]) -> None:
    after = Talker("b")
    found = await ask(hook, Talker("a", lambda pool: Admission(pool=replace(pool, **fields))), after)
    assert is_internal(found, "a")
    assert (found.updated, after.seen) == (False, [])


@pytest.mark.parametrize("fields", [{"compute_unit": UNIT * 2}, {"limits": PoolLimits(3)}], ids=str)
async def test_unit_and_limits_may_change_but_for_a_deletion(fields: dict[str, Any]) -> None:
    for hook in HOOKS:
        found = await ask(hook, Talker("a", lambda pool: Admission(pool=replace(pool, **fields))))
        if hook == "pre_delete_pool":
            assert is_internal(found, "a")
        else:
            assert found == Admission(pool=replace(POOL, **fields))


async def test_a_deletion_may_add_a_finalizer() -> None:
    found = await ask(
        "pre_delete_pool", Talker("a", lambda pool: Admission(pool=replace(pool, finalizers=("keep",))))
    )
    assert found.pool == replace(POOL, finalizers=("keep",))


async def test_a_refusal_stays_where_a_change_is_not_allowed() -> None:
    found = await ask(
        "pre_update_pool", Talker("a", lambda pool: Admission(pool=pool.with_replicas(1), error=FULL))
    )
    assert (found.error, found.plugin, found.updated) == (FULL, "a", False)


class Book(PoolStats):
    """Writes down what the manager tells."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, AppError | None]] = []

    def called(self, plugin: str, hook: str, error: AppError | None, seconds: float) -> None:
        assert seconds >= 0
        self.lines.append((plugin, hook, error))


@pytest.mark.parametrize("say", [raising(ValueError()), lambda pool: Admission(pool=pool.with_replicas(0))])
async def test_every_call_is_told_with_its_refusal(say: Say) -> None:
    watch = Book()
    chain = PluginManager(Talker("a"), Talker("b", say), Talker("c"), watch=watch)
    found = await asking(chain, "pre_update_pool")
    assert watch.lines == [("a", "pre_update_pool", None), ("b", "pre_update_pool", found.error)]


# ------------------------------------------------------------ pods


async def test_the_pods_hook_sees_earlier_changes_and_ends_at_the_first_error() -> None:
    def named(name: str) -> Say:
        return lambda pod: PodAdmission(pod={**pod, name: "1"})

    plugins = [Talker("a", named("one")), Talker("b", later(named("two"))), Talker("c", raising(FULL))]
    last = Talker("d")
    found = await PluginManager(*plugins, last).pre_create_pod_hooks(CTX, {"kind": "Pod"}, POOL)
    assert found == PodAdmission({"kind": "Pod", "one": "1", "two": "1"}, FULL, "c")
    assert plugins[2].seen == [({"kind": "Pod", "one": "1", "two": "1"}, CTX, POOL)]
    assert last.seen == []


async def test_a_manifest_that_is_changed_in_place_stays_as_it_was_for_others() -> None:
    def spoil(pod: Any) -> object:
        pod["metadata"]["name"] = "other"
        pod["spec"] = {}
        raise RuntimeError

    pod = {"metadata": {"name": "vm"}}
    found = await PluginManager(Talker("a", spoil)).pre_create_pod_hooks(CTX, pod, POOL)
    assert is_internal(found, "a")
    assert pod == {"metadata": {"name": "vm"}}


async def test_a_plugin_that_keeps_its_manifest_cannot_change_it_later() -> None:
    kept: dict[str, Any] = {"spec": {"nodeName": "n1"}}

    def spoil(_: object) -> PodAdmission:
        kept["spec"]["nodeName"] = "n2"
        return POD_ADMITTED

    chain = PluginManager(Talker("a", lambda _: PodAdmission(pod=kept)), Talker("b", spoil))
    found = await chain.pre_create_pod_hooks(CTX, {}, POOL)
    kept.clear()
    assert found == PodAdmission({"spec": {"nodeName": "n1"}})


class Stuck:
    """Cannot be copied."""

    def __deepcopy__(self, memo: object) -> object:
        raise TypeError("cannot be copied")


NO_PODS: list[Any] = [7, "pod", [], True, PodAdmission]
NO_POD_ANSWERS: list[Any] = [
    *(None, ADMITTED, {}, PodAdmission(error=cast("Any", "full")), PodAdmission(pod={"spec": Stuck()})),
    *(PodAdmission(pod=pod) for pod in NO_PODS),
]


@pytest.mark.parametrize(
    "answer",
    NO_POD_ANSWERS,
    ids=lambda answer: type(getattr(answer, "pod", answer)).__name__,
)
async def test_what_is_no_answer_about_a_pod_is_internal(answer: object) -> None:
    after = Talker("b")
    found = await PluginManager(Talker("a", lambda _: answer), after).pre_create_pod_hooks(CTX, {}, POOL)
    assert is_internal(found, "a")
    assert (found.updated, after.seen) == (False, [])
