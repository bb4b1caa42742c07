"""Calls of an author's methods: plain ones in threads of their own, and whatever they raise as a gRPC status with its text."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc.aio

from hosting.logs import Logger
from hosting.threads import in_own_thread

T = TypeVar("T")


async def called(method: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """The outcome of a method, which may be plain or `async def`. A plain one may block: it runs in a thread of its own."""
    if inspect.iscoroutinefunction(method):
        return cast("T", await method(*arguments))
    found = await in_own_thread(lambda: method(*arguments))
    return await found if inspect.isawaitable(found) else found


def checked(value: object, kind: type[T], method: str) -> T:
    """What an author's method returned. Raises `TypeError` where that is of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{method} must return a {kind.__name__}, not {value!r:.200}")
    return value


async def answered(work: Awaitable[T], context: grpc.aio.ServicerContext[Any, Any], log: Logger) -> T:
    """The answer to a call. What the author's code raises is logged here and told to the agent."""
    try:
        return await work
    except Exception as error:
        log.warning("a call failed", error=repr(error), exc_info=error)
        await context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"[:1000])
        raise AssertionError("a call that was aborted goes on") from error
