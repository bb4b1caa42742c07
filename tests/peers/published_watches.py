"""The watches of pods by published agents: they tell which scheduler there is, and that a VM arrives (3.1, 3.8).

Both have an edge that ends a runner for good: an event that does not come brings nobody back whose first request has failed, and the
pod to which a VM migrates is ready, so that its runner asks, before the VM is in it.
"""

from dataclasses import dataclass, field

from tests.peers.published_agent import VM, PublishedAgent


@dataclass(slots=True)
class SchedulerPods:
    """The watch of the pods with the scheduler's label; `ready` are their addresses by name. `agents` are told of each event."""

    agents: list[PublishedAgent] = field(default_factory=list)
    ready: dict[str, str] = field(default_factory=dict)

    def begin(self, agent: PublishedAgent) -> None:
        """A runner begins: it takes the scheduler that is there."""
        self.agents.append(agent)
        agent.set_scheduler(next(iter(self.ready.values()), None))

    def seen(self, name: str, address: str, *, is_labelled: bool, is_ready: bool) -> None:
        """A pod is like this now. One that loses its label or is ready no more counts as deleted; one that stays as it is is no event."""
        is_there = is_labelled and is_ready
        if is_there == (name in self.ready):
            return
        if is_there:
            self.ready[name] = address
        else:
            del self.ready[name]
        for agent in self.agents:
            agent.set_scheduler(address if is_there else None)


def arrival(agent: PublishedAgent, pod: str) -> PublishedAgent:
    """The runner of the pod to which the VM of `agent` migrates, to be started as soon as that pod is ready; it reads the VM anew."""
    left = agent.vm
    vm = VM(left.low, left.high, left.use, left.namespace, pod, on_patch=left.on_patch)
    return PublishedAgent(vm, agent.informant, agent.knobs, host=agent.host)
