"""The machine of a guest as its informant shows and switches it: `GET /machine` and `PUT /machine`. Both are our own, and published peers have neither.

A hypervisor tells the plugged resources, and the guest alone tells the part that it uses: a vCPU counts when the guest's kernel has it
online, memory when its blocks are online. See docs/reference/protocol.md ("The machine of a guest").
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
