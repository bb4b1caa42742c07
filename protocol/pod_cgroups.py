"""The control groups of a pod as its node informant shows them: `GET /pods/{uid}/cgroups`. Our own; published peers have no such page.

The API server tells a kubelet's view of a pod, up to seconds later. The kernel's groups tell the truth: which containers have processes,
and the limits. See docs/reference/protocol.md ("The control groups of a pod").
"""

from msgspec import field

from protocol.fields import Message, Uint64


class GroupAllowance(Message, frozen=True):
    """The limits of one group; null means no limit."""

    vcpu_milli: Uint64 | None = field(name="milliCPU", default=None)
    memory_bytes: Uint64 | None = field(name="memoryBytes", default=None)


class PodCgroups(Message, frozen=True):
    """The pod's own group, and those of the containers that have processes, by the container's ID.

    `behind` names the resources of which the pod's group allows less than the containers' groups, or less than the size that was
    announced: the kubelet has left the pod's group as it was.
    """

    MUST_BE_WHOLE = True

    pod: GroupAllowance
    containers: dict[str, GroupAllowance]
    behind: tuple[str, ...] = ()
