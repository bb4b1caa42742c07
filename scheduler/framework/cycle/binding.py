"""What follows the choice of a node, for the cycle and the extender alike: reserve, permit, pre-bind, bind, post-bind; and the way back.

A step that does not succeed gives back all that was kept, in reverse order. Source: reference/kubernetes.md 1.7 and 1.9.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, Protocol

from hosting.logs import Logger
from scheduler.framework.core.objects import PodInfo
from scheduler.framework.core.status import Code, Status, error_status, is_success
from scheduler.framework.plugins.notes import MAY_BE_BOUND, find
from scheduler.framework.runtime.context import CycleState

UNRESERVE_S: Final = 5.0
"""How long plugins may take to give back what they keep."""
POST_BIND_S: Final = 5.0
"""How long plugins may take once the pod is bound."""


class BindingRuns(Protocol):
    """What a binding needs of a framework: `FrameworkExtender` has it."""

    async def nominate_reservation(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> tuple[Any, Status | None]:
        """The reservation that the pod uses on its node."""

    async def run_reserve_plugins_reserve(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """Keep what the pod needs, in the ledger and elsewhere."""

    async def run_reserve_plugins_unreserve(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        """Give back what the plugins keep for the pod, in reverse order."""

    async def run_permit(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """Wait where a plugin makes the pod wait."""

    async def run_pre_bind_pre_flights(
        self, context: CycleState, pod: PodInfo, node_name: str
    ) -> Status | None:
        """Skip where no plugin has anything to do before the pod is bound."""

    async def wait_on_permit(self, pod: PodInfo) -> Status | None:
        """How the wait ended."""

    async def run_pre_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """What must be done before the pod is bound."""

    async def run_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> Status | None:
        """Bind the pod."""

    async def run_post_bind_plugins(self, context: CycleState, pod: PodInfo, node_name: str) -> None:
        """The pod was bound."""


class Assumptions(Protocol):
    """Who must know which pods are on their way to a node."""

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Room is kept for the pod; it counts as being on the node."""

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod will not be bound to that node."""


class Binding:
    """One pod on its way to a node. Call `reserve`, `prepare` and `bind`, as long as each succeeds.

    What a plugin raises goes through, after everything was given back; so does a cancellation. Whoever calls has the deadlines.
    """

    def __init__(
        self,
        framework: BindingRuns,
        context: CycleState,
        pod: PodInfo,
        node_name: str,
        assumptions: Assumptions,
        log: Logger,
    ) -> None:
        self.framework = framework
        self.pod = pod
        self.node_name = node_name
        self._context = context
        self._assumptions = assumptions
        self._log = log

    @property
    def is_in_doubt(self) -> bool:
        """Whether the pod may be bound, for all that is known: its room stays until a read of the cluster decides."""
        return bool(find(self._context, MAY_BE_BOUND))

    async def reserve(self) -> Status | None:
        """Keep room for the pod, and ask for its permit. Success also where the pod has to wait: `prepare` does."""
        return await self._step(self._reserve())

    async def prepare(self) -> Status | None:
        """Wait for the permit, and do what must be done before the pod is bound."""
        return await self._step(self._prepare())

    async def bind(self) -> Status | None:
        """Bind the pod. What goes wrong after that is logged only."""
        status = await self._step(self._bind())
        if is_success(status):
            run = self.framework.run_post_bind_plugins(self._context, self.pod, self.node_name)
            await self._contained("post-bind failed", run, POST_BIND_S)
        return status

    async def undo(self) -> None:
        """Give back what is kept. Called by every step that fails; and by whoever goes no further after one that worked."""
        run = self.framework.run_reserve_plugins_unreserve(self._context, self.pod, self.node_name)
        try:
            await self._contained("unreserve failed", run, UNRESERVE_S)
        finally:
            if not self.is_in_doubt:
                self._assumptions.forget_pod(self.pod, self.node_name)

    async def _step(self, run: Awaitable[Status | None]) -> Status | None:
        try:
            status = await run
        except BaseException:
            await self.undo()
            raise
        if not is_success(status):
            await self.undo()
        return status

    async def _reserve(self) -> Status | None:
        context, pod, node = self._context, self.pod, self.node_name
        _, status = await self.framework.nominate_reservation(context, pod, node)
        if not is_success(status):
            return status
        status = await self.framework.run_reserve_plugins_reserve(context, pod, node)
        if not is_success(status):
            return status
        self._assumptions.assume_pod(pod, node)
        status = await self.framework.run_permit(context, pod, node)
        return None if status is not None and status.code is Code.WAIT else status

    async def _prepare(self) -> Status | None:
        context, pod, node = self._context, self.pod, self.node_name
        status = await self.framework.run_pre_bind_pre_flights(context, pod, node)
        if not is_success(status) and (status is None or status.code is not Code.SKIP):
            return status
        status = await self.framework.wait_on_permit(pod)
        if not is_success(status):
            return status
        return await self.framework.run_pre_bind_plugins(context, pod, node)

    async def _bind(self) -> Status | None:
        status = await self.framework.run_bind_plugins(self._context, self.pod, self.node_name)
        if status is not None and status.code is Code.SKIP:
            return error_status("no plugin of the profile binds pods")
        return status

    async def _contained(self, said: str, run: Awaitable[None], within_s: float) -> None:
        """Whatever a plugin does here, the others and the caller go on."""
        try:
            async with asyncio.timeout(within_s):
                await run
        except Exception as error:  # noqa: BLE001 - see above
            self._log.error(said, pod=self.pod.name, node=self.node_name, error=repr(error), exc_info=error)
