"""Pods that take room: assumed by the scheduler, bound a little later, and over after a while.

Some bindings are lost, and nobody gives the room back but a read that does not show the pod. Some are accepted late, when the
room was perhaps given to others: such a pod has bypassed the scheduler until that is told of it.
"""

import random
from typing import TYPE_CHECKING

from protocol.values import ZERO, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import PodSpec
from tests.simulation.cluster import Node, Pod

if TYPE_CHECKING:
    from tests.simulation.world import World

BIND_S = 18.0
LATE_S = 25.0
"""Later than a placement is kept for."""
LOST = 0.1
LATE = 0.2


class Placements:
    """The pods of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.pods: list[Pod] = []

    def want(self, node: Node, amount: Resources, span_s: float, dice: random.Random) -> None:
        """Somebody wants to run a pod on a node for `span_s`."""
        world = self._world
        name = f"pod{world.count()}"
        pod = Pod(PodSpec(PodName(name, "default"), f"uid-{name}", node.name, amount), node)
        process = world.scheduler.process
        if process is not None:
            fate = dice.random()
            pod.bind_s, pod.lasts_s = BIND_S * fate, span_s
            if fate < LOST:
                pod.bind_s = None
            elif fate < LATE:
                pod.bind_s, pod.is_unseen = LATE_S * (1 + fate), True
            process.when_it_runs(lambda: process.place(pod))

    def placed(self, pod: Pod) -> None:
        """There is room, and the pod will be bound, unless its binder dies before that."""
        world = self._world
        world.trace.add(
            world.clock.now_s, pod.node.name, f"room is kept for {pod.spec.pod.name} of", pod.spec.requests
        )
        if pod.bind_s is not None:
            self.pods.append(pod)
            world.clock.after(pod.bind_s, lambda: self._bind(pod))

    def _bind(self, pod: Pod) -> None:
        world = self._world
        if pod not in self.pods:
            return
        pod.is_bound = True
        world.trace.add(world.clock.now_s, pod.node.name, f"{pod.spec.pod.name} is bound")
        if pod.is_unseen:
            pod.node.account.other_unseen += pod.spec.requests
        world.observer.other(pod.node.account, pod.spec.requests)
        if world.scheduler.process is not None:
            world.scheduler.process.watch.pod_changed(pod)
        world.clock.after(pod.lasts_s, lambda: self._end(pod))

    def _end(self, pod: Pod) -> None:
        world = self._world
        if pod.has_ended:
            return
        pod.has_ended = True
        self.pods.remove(pod)
        world.trace.add(world.clock.now_s, pod.node.name, f"{pod.spec.pod.name} has ended")
        world.observer.other(pod.node.account, ZERO - pod.spec.requests)
        if pod.is_unseen:
            pod.node.account.other_unseen -= pod.spec.requests
        if world.scheduler.process is not None:
            world.scheduler.process.watch.pod_changed(pod)

    def is_told(self, pod: Pod) -> None:
        """A process was told that the pod is bound: what bypassed it is in its ledger."""
        if pod.is_unseen and pod.is_bound and not pod.has_ended:
            pod.is_unseen = False
            self._world.observer.other_told(pod.node.account, pod.spec.requests)

    def binder_died(self) -> None:
        """Pods that were to be bound by a process that has died are not."""
        self.pods = [pod for pod in self.pods if pod.is_bound]

    def end_all(self) -> None:
        """Every pod that runs ends now; those that are to be bound go on and end by themselves."""
        for pod in list(self.pods):
            pod.lasts_s = 1.0
            if pod.is_bound:
                self._end(pod)
