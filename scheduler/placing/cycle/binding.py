"""From the choice of a node to the bound pod, for the cycle and the kube extender alike: reserve, permit, pre-bind, bind, post-bind; and the way back.

Source: reference/kubernetes.md 1.7 and 1.9.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol, Self

from hosting.logs import Logger
from scheduler.placing.core import runs
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Code, Status, error_status, is_success
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.base import MAY_BE_BOUND, find

PRE_FLIGHT_S: Final = 10.0
"""How long plugins may take to say whether they have anything to do before the pod is bound."""
POST_BIND_S: Final = 5.0
"""How long plugins may take once the pod is bound."""


class Assumptions(Protocol):
    """Who must know which pods are on their way to a node."""

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Room is kept for the pod; it counts as being on the node."""

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod will not be bound to that node."""


class Binding:
    """One pod on its way to a node. Call `reserve`, `wait`, `prepare` and `bind` in a block `async with`, as long as each succeeds.

    A pod that is not bound when the block ends, however that ends, is given up: all that was kept is given back, in reverse order. The caller
    has the deadlines, inside of the block. `wait` needs none: what is asked before the wait has its own, and so has each wait.
    """

    def __init__(
        self,
        framework: SchedulingFramework,
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
        self._may_keep = False
        """Whether plugins may keep anything for the pod."""
        self._is_bound = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._may_keep and not self._is_bound:
            await self._undo()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the pod may be bound, for all that is known: its room stays until a read of the cluster decides."""
        return bool(find(self._context, MAY_BE_BOUND))

    async def reserve(self) -> Status | None:
        """Keep room for the pod, and ask for its permit. Success also where the pod has to wait: `wait` does."""
        context, pod, node = self._context, self.pod, self.node_name
        _, status = await self.framework.nominate_reservation(context, pod, node)
        if not is_success(status):
            return status
        self._may_keep = True
        status = await self.framework.run_reserve_plugins_reserve(context, pod, node)
        if not is_success(status):
            return status
        self._assumptions.assume_pod(pod, node)
        status = await self.framework.run_permit(context, pod, node)
        return None if status is not None and status.code is Code.WAIT else status

    async def wait(self) -> Status | None:
        async with asyncio.timeout(PRE_FLIGHT_S):
            status = await self.framework.run(runs.PRE_FLIGHT, self._context, self.pod, self.node_name)
        if status is not None and status.code is not Code.SKIP and not is_success(status):
            return status
        return await self.framework.wait_on_permit(self.pod)

    async def prepare(self) -> Status | None:
        return await self.framework.run_pre_bind_plugins(self._context, self.pod, self.node_name)

    async def bind(self) -> Status | None:
        """Bind the pod. Later failures are logged only."""
        status = await self.framework.run(runs.BIND, self._context, self.pod, self.node_name)
        if status is not None and status.code is Code.SKIP:
            return error_status("no plugin of the profile binds pods")
        if is_success(status):
            self._is_bound = True
            await self._contained("post-bind failed", self._post_bind())
        return status

    async def _post_bind(self) -> None:
        async with asyncio.timeout(POST_BIND_S):
            await self.framework.run(runs.POST_BIND, self._context, self.pod, self.node_name)

    async def _undo(self) -> None:
        run = self.framework.run_reserve_plugins_unreserve(self._context, self.pod, self.node_name)
        try:
            await self._contained("unreserve failed", run)
        finally:
            if not self.is_in_doubt:
                self._assumptions.forget_pod(self.pod, self.node_name)

    async def _contained(self, said: str, run: Awaitable[None]) -> None:
        """Whatever a plugin does here, the caller goes on."""
        try:
            await run
        except Exception as error:  # noqa: BLE001 - see above
            self._log.error(said, pod=self.pod.name, node=self.node_name, error=repr(error), exc_info=error)
