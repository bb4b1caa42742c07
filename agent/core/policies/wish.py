"""How much more an urgent wish of the guest asks for: a share of the size, and twice as much if one wish was not enough.

The guest calls when it cannot wait for the next metrics, so nobody knows how much it needs. A single unit is soon used up if units are
small; a share of the size reaches any need within a few calls.
"""

from typing import Final

from agent.core.policies.values import MILLION
from protocol.values import Resources

HALF: Final = 500_000


def wished(
    size: Resources, step: Resources, share: int = HALF, *, cpu: bool, memory: bool, earlier: Resources
) -> Resources:
    """The amount that a wish asks for, at least `size` and a unit of each resource that it names; 0 of the other resource.

    `size` is the amount in use, and `share` (parts per million) of it is wished for. `earlier` is the result for the wish before, as long
    as its growth is kept (zero: there is none). A wish that comes again before that growth has happened asks for no more; a wish that comes
    after it asks for twice the share. The growth is in whole units.
    """
    return Resources(
        _wished(size.vcpu_milli, step.vcpu_milli, share, earlier.vcpu_milli) if cpu else 0,
        _wished(size.memory_bytes, step.memory_bytes, share, earlier.memory_bytes) if memory else 0,
    )


def _wished(size: int, step: int, share: int, earlier: int) -> int:
    if earlier > size:
        return earlier
    more = size * share * (2 if earlier else 1)
    return size + step * max(1, -(-more // (MILLION * step)))
