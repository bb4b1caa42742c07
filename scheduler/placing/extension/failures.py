"""What happens when a pod could not be scheduled, and when an assumed pod is forgotten: handlers that plugins registered.

A plugin's handler that raises is logged and counts as one that said False: no handler keeps another one from being called.
Source: reference/koordinator.md 1.8.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hosting.logs import Logger
from scheduler.placing.core.extended import ErrorHandlerFilter, ForgetPodHandler
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.status import Status

H = TypeVar("H", bound=Callable[..., object])


def _plain(handler: H) -> H:
    """The handler. A coroutine would count as True, and do nothing."""
    if inspect.iscoroutinefunction(handler):
        raise ValueError(f"handler {handler!r} must not be a coroutine function: nobody waits for it")
    return handler


class ErrorHandlers:
    """The filters around the default handling of a failure, in the order of registration."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._pre: list[ErrorHandlerFilter] = []
        self._post: list[ErrorHandlerFilter] = []

    def register(self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None) -> None:
        """Add a pair; either may be None. Raises `ValueError` for a coroutine function."""
        if pre is not None:
            self._pre.append(_plain(pre))
        if post is not None:
            self._post.append(_plain(post))

    async def handle(self, pod: PodInfo, status: Status, default: Callable[[], Awaitable[None]]) -> None:
        """The pre filters until one says True, `default` unless one did, then the post filters until one says True.

        The post filters run even where `default` raises or is cancelled; that goes on to the caller.
        """
        try:
            if not self._is_taken(self._pre, pod, status):
                await default()
        finally:
            self._is_taken(self._post, pod, status)

    def _is_taken(self, filters: list[ErrorHandlerFilter], pod: PodInfo, status: Status) -> bool:
        return any(self._says_true(each, pod, status) for each in filters)

    def _says_true(self, each: ErrorHandlerFilter, pod: PodInfo, status: Status) -> bool:
        try:
            return each(pod, status) is True
        except Exception:  # noqa: BLE001 - a plugin's own: whatever it raises
            self._log.exception("an error handler filter of a plugin failed", pod=pod.name)
            return False


class ForgetHandlers:
    """The handlers of pods that were assumed and are forgotten."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._handlers: list[ForgetPodHandler] = []

    def register(self, handler: ForgetPodHandler) -> None:
        """Add a handler. Raises `ValueError` for a coroutine function."""
        self._handlers.append(_plain(handler))

    def forget(self, pod: PodInfo, node_name: str, give_back: Callable[[], None]) -> None:
        """Give the pod's room back, and call every handler, also where that raises; what it raises goes on to the caller."""
        try:
            give_back()
        finally:
            for handler in self._handlers:
                try:
                    handler(pod, node_name)
                except Exception:  # noqa: BLE001 - a plugin's own: whatever it raises
                    self._log.exception("a forget handler of a plugin failed", pod=pod.name, node=node_name)
