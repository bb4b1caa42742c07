"""An informant's own pages, which published peers do not have: the machine of a guest, and the control groups of a pod.

`GET /machine` and `PUT /machine`: a hypervisor tells the plugged resources, and the guest alone tells the part that it uses: a vCPU counts
when the guest's kernel has it online, memory when its blocks are online. `GET /pods/{uid}/cgroups`: the API server tells a kubelet's view
of a pod, up to seconds later; the kernel's groups tell which containers have processes, and the limits. See docs/reference/protocol.md
("The machine of a guest", "The control groups of a pod").
"""

from typing import Annotated

from msgspec import Meta, field

from protocol.fields import Message, Uint64

MAX_CPUS = 4096
CpuCount = Annotated[int, Meta(ge=1, le=MAX_CPUS)]


class GuestMachine(Message, frozen=True):
    """The parts of its machine that the guest's kernel has.

    `present_cpus` are those that it could bring online, with those that are. `coming_cpus` are not online yet, and the kernel is bringing
    them online: nothing can stop that, not even an order of a later life. `memory_online_bytes` is the sum of its online memory blocks, whose
    size is `memory_block_bytes`: all memory of the machine, before the kernel takes its own share of it. `generation` is the highest that
    any order named since this informant began, 0 before the first.
    """

    MUST_BE_WHOLE = True

    generation: Uint64
    present_cpus: CpuCount = field(name="presentCPUs")
    online_cpus: CpuCount = field(name="onlineCPUs")
    memory_online_bytes: Uint64 = field(name="memoryOnlineBytes")
    memory_block_bytes: Uint64 = field(name="memoryBlockBytes")
    coming_cpus: Annotated[int, Meta(ge=0, le=MAX_CPUS)] = field(name="comingCPUs", default=0)


class MachineOrder(Message, frozen=True):
    """Have so many CPUs online, as far as they are present; null leaves them as they are.

    `generation` says which life of an agent orders, and `sequence_number` rises from one of its orders to the next: an order may arrive late, when
    its sender has given it up and has sent another one. Once an order was taken, those of lower generations, and those before it of its own,
    are refused (409), and no CPU is switched for them any more. The answer is the `GuestMachine` afterwards.
    """

    MUST_BE_WHOLE = True

    generation: Uint64
    online_cpus: CpuCount | None = field(name="onlineCPUs", default=None)
    sequence_number: Uint64 = field(name="sequenceNumber", default=0)


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
