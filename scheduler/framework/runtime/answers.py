"""What a plugin answered, whether its method is plain or a coroutine."""

import inspect
from collections.abc import Awaitable, Iterable
from typing import TypeVar, cast

from scheduler.framework.core.plugin import MaybeAwaited, Plugin
from scheduler.framework.core.status import Status, is_success

T = TypeVar("T")


async def answered(answer: MaybeAwaited[T]) -> T:
    """The answer; waited for only where it has to be."""
    if inspect.isawaitable(answer):
        return await cast("Awaitable[T]", answer)
    return answer


async def first_failure(answers: Iterable[tuple[Plugin, MaybeAwaited[Status | None]]]) -> Status | None:
    """The first status that is no Success, as the word of its plugin. With a generator, later plugins are not called then."""
    for plugin, answer in answers:
        status = await answered(answer)
        if status is not None and not is_success(status):
            return status.by(plugin.name())
    return None
