"""The calls to one plugin: each has a deadline, only so many are under way, and what becomes of them is counted.

A plugin may register again, on another socket or with a new server on the same one: calls under way end where they began, and
later calls go to the new server. The agent's values as messages, and amounts of answers as values, are here for all types.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from agent.core.model import Vm
from agent.node.plugins.plugin_connection import UnixChannel
from agent.node.plugins.ports import CallFigures, PluginAwayError, PluginError
from agent.node.plugins.proto import nodeplugin_v1_pb2 as shared
from agent.node.plugins.types.answers import AnswerCheck, AnswerError, plain
from protocol.values import MAX_MEMORY_BYTES, Resources

MAX_CPU_MILLI: Final = 10**9
"""A million CPUs: more is no VM's size."""


def vm_message(vm: Vm) -> shared.Vm:
    return shared.Vm(
        namespace=vm.pod.namespace,
        name=vm.pod.name,
        uid=vm.pod_uid,
        kind=vm.kind.value,
        virtual_machine=vm.virtual_machine or None,
        min=amount_message(vm.bounds.min),
        max=amount_message(vm.bounds.max),
    )


def amount_message(amount: Resources) -> shared.Resources:
    return shared.Resources(cpu_milli=amount.vcpu_milli, memory_bytes=amount.memory_bytes)


def amount_of(check: AnswerCheck, path: str, message: shared.Resources) -> Resources:
    """The amount that a VM has or moves to: both resources are above zero."""
    check.whole(f"{path}.cpu_milli", message.cpu_milli, MAX_CPU_MILLI, 1)
    check.whole(f"{path}.memory_bytes", message.memory_bytes, MAX_MEMORY_BYTES, 1)
    return Resources(message.cpu_milli, message.memory_bytes)


S = TypeVar("S")
Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginLimits:
    """What one plugin may cost. `max_calls` is how many calls to it may be under way at once.

    `command_deadline_s` is the longest that a resizer may take until a command that it has handed on can no longer be accepted.
    """

    call_deadline_s: float = 2.0
    max_calls: int = 32
    register_deadline_s: float = 10.0
    command_deadline_s: float = 5.0


@dataclass(frozen=True, slots=True)
class PluginLink(Generic[S]):
    """The connection of one registration. `stub` calls the plugin's service."""

    endpoint: str
    opened: UnixChannel
    stub: S


class PluginCalls(Generic[S]):
    """One plugin of one type, registered or not.

    `own` makes a task of what must go on when a call has ended, and keeps it.
    """

    def __init__(
        self,
        plugin_type: str,
        name: str,
        limits: PluginLimits,
        own: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.plugin_type = plugin_type
        self.name = name
        self.limits = limits
        self._own = own
        self._link: PluginLink[S] | None = None
        self._in_flight = 0
        self._figures = CallFigures()

    @property
    def endpoint(self) -> str | None:
        """Where the plugin serves; None while the plugin is not registered."""
        return None if self._link is None else self._link.endpoint

    def figures(self) -> CallFigures:
        """The calls since the plugin has registered last, and those that are under way."""
        return replace(self._figures, in_flight=self._in_flight)

    def use(self, link: PluginLink[S] | None) -> None:
        """Make later calls over this connection; None for the end of the registration."""
        before, self._link = self._link, link
        if link is not None:
            self._figures = CallFigures()
        if before is not None:
            self._own(self._ended(before), f"calls to {self} end")

    async def call(
        self,
        method: Callable[[S], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"],
        request: Request,
        read: Callable[[Response], T],
        deadline_s: float | None = None,
    ) -> T:
        """What `read` makes of the answer; `read` raises `AnswerError` for an answer that breaks its rules.

        Raises `PluginAwayError` where no plugin is registered, and `PluginError` for all else: no answer in time, too many calls,
        an error of the plugin, an answer that cannot be used.
        """
        link = self._link
        if link is None:
            raise PluginAwayError(f"{self} is not registered")
        if self._in_flight >= self.limits.max_calls:
            self._figures = replace(self._figures, turned_away=self._figures.turned_away + 1)
            raise PluginError(f"{self} has {self._in_flight} calls under way, and no more are made at once")
        timeout_s = self.limits.call_deadline_s if deadline_s is None else deadline_s
        self._figures = replace(self._figures, calls=self._figures.calls + 1)
        self._in_flight += 1
        try:
            return read(message(await method(link.stub)(request, timeout=timeout_s)))
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            text = f"no answer within {timeout_s:g} s" if is_late else status_text(error)
            raise self._failed(text, is_late=is_late) from None
        except AnswerError as error:
            raise self._failed(f"an answer that cannot be used: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The library cancels calls of a channel that is closed.
            raise self._failed("the registration ended during the call") from None
        finally:
            self._in_flight -= 1

    def _failed(self, text: str, *, is_late: bool = False) -> PluginError:
        now = self._figures
        self._figures = replace(
            now, failures=now.failures + 1, timeouts=now.timeouts + is_late, last_error=text
        )
        return PluginError(f"{self}: {text}")

    async def _ended(self, link: PluginLink[S]) -> None:
        """Close a connection when its calls have ended, which their deadlines bound."""
        await link.opened.channel.close(grace=self.limits.call_deadline_s + self.limits.command_deadline_s)
        await link.opened.close()

    def __str__(self) -> str:
        return f"{self.plugin_type} {self.name}"


def message(answer: Response | None) -> Response:
    """The message that a call gave. Raises `AnswerError` where the bytes were no message of that type, of which the library gives None."""
    if answer is None:
        raise AnswerError("its bytes are no message of the expected type")
    return answer


def status_text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {plain(error.details() or 'without a reason')}"
