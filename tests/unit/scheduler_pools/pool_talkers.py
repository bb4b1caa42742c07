"""Plugins that say what a test wants, and how to ask a chain of them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from protocol.values import Resources
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.chain.plugin import BasePlugin, Handle
from scheduler.pools.core.errors import PluginErrorKind, kind_from_app_error, new_insufficient_resources
from scheduler.pools.core.values import (
    ADMITTED,
    Admission,
    Context,
    PodAdmission,
    PodManifest,
    Pods,
    Pool,
    Purpose,
)

UNIT = Resources(1000, 2**30)
POOL = Pool("blue", UNIT, labels={"team": "a"}, replicas=5, uid="uid-blue", generation=2)
CTX = Context(Purpose.PROBE)
HANDLE = cast("Handle", object())
FULL = new_insufficient_resources("full")
HOOKS = ["pre_create_pool", "pre_update_pool", "pre_delete_pool"]
SOON_S = 0.01

Say = Callable[[Any], Any]


class Talker(BasePlugin):
    """Answers every hook with what `say` makes of the pool, or of the pod, that it is handed."""

    def __init__(self, name: str, say: Say = lambda _: ADMITTED, heard: list[str] | None = None) -> None:
        self.label = name
        self.say = say
        self.heard = heard if heard is not None else []
        self.seen: list[Any] = []

    def name(self) -> str:
        return self.label

    def answer(self, value: object, *rest: object) -> Any:
        self.seen.append((value, *rest))
        self.heard.append(self.label)
        return self.say(value)

    def pre_create_pool(self, ctx: Context, pool: Pool) -> Any:
        return self.answer(pool, ctx)

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Any:
        return self.answer(new_pool, ctx, pods)

    def pre_delete_pool(self, ctx: Context, pool: Pool) -> Any:
        return self.answer(pool, ctx)

    def pre_create_pod(self, ctx: Context, pod: PodManifest, pool: Pool) -> Any:
        return self.answer(pod, ctx, pool)


def later(say: Say) -> Say:
    """The same answer, from a coroutine that waits for one turn of the loop."""

    async def answer(value: object) -> object:
        await asyncio.sleep(0)
        return say(value)

    return answer


def raising(error: BaseException) -> Say:
    def say(_: object) -> object:
        raise error

    return say


def labelled(**texts: str) -> Say:
    return lambda pool: Admission(pool=replace(pool, labels={**pool.labels, **texts}))


async def ask(hook: str, *plugins: Talker, pool: Pool = POOL) -> Admission:
    return await asking(PluginManager(*plugins, timeout_s=SOON_S), hook, pool)


async def asking(chain: PluginManager, hook: str, pool: Pool = POOL) -> Admission:
    more = ((),) if hook == "pre_update_pool" else ()
    found: Admission = await getattr(chain, hook)(CTX, pool, *more)
    return found


def is_internal(answer: Admission | PodAdmission, plugin: str) -> bool:
    error = answer.error
    assert error is not None, answer
    return (answer.plugin, kind_from_app_error(error)) == (plugin, PluginErrorKind.INTERNAL)
