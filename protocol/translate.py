"""Wire resources (whole vCPUs, memory slots) ↔ exact resources, with the slot size of the VM.

The integers hold an exact amount rounded up in a request and down in a permit, saturating at uint16; callers with the
extension read `raw` instead.
"""

import functools

from protocol import values, wire
from protocol.fields import UINT16_MAX


@functools.lru_cache(maxsize=4096)
def from_slots(amount: wire.SlotResources, slot_bytes: int) -> values.Resources:
    """The exact amount of `amount` with slots of `slot_bytes` (above zero)."""
    assert slot_bytes > 0, slot_bytes
    return values.Resources(amount.vcpu * 1000, amount.mem * slot_bytes)


@functools.lru_cache(maxsize=4096)
def request_slots(amount: values.Resources, slot_bytes: int) -> wire.SlotResources:
    """`amount` rounded up to whole vCPUs and slots, saturating: the integers of a request."""
    vcpu, mem = -(-amount.vcpu_milli // 1000), -(-amount.memory_bytes // slot_bytes)
    return wire.SlotResources(min(vcpu, UINT16_MAX), min(mem, UINT16_MAX))


@functools.lru_cache(maxsize=4096)
def permit_slots(amount: values.Resources, slot_bytes: int) -> wire.SlotResources:
    """`amount` rounded down to whole vCPUs and slots, saturating: the integers of a permit."""
    vcpu, mem = amount.vcpu_milli // 1000, amount.memory_bytes // slot_bytes
    return wire.SlotResources(min(vcpu, UINT16_MAX), min(mem, UINT16_MAX))


def is_whole(amount: values.Resources, slot_bytes: int) -> bool:
    """Whether `amount` travels unchanged without the extension."""
    return from_slots(request_slots(amount, slot_bytes), slot_bytes) == amount
