"""A VM that asks its pool for more, as the room counts it and as plugins see it. Pure."""

import functools
from collections.abc import Mapping

from scheduler.core import events
from scheduler.core.vms import VmRecord
from scheduler.pools.core.admission_state import Part
from scheduler.pools.core.values import Pool, VmRequest, frozen_texts


@functools.lru_cache(maxsize=4096)
def labels_of(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Labels as hooks see them; the same object for all VMs that have the same ones."""
    return frozen_texts(dict(pairs))


def part_of(pool: Pool, needed: events.AdmissionCallNeeded, record: VmRecord) -> Part:
    """Its part of the pool now and with what it wants."""
    row = record.row
    kept = row.units > row.state.current.units(pool.compute_unit)
    return Part(needed.uid, row.units, needed.wanted.units(pool.compute_unit), kept)


def request_of(needed: events.AdmissionCallNeeded, record: VmRecord, part: Part) -> VmRequest:
    """What the plugins are told of it."""
    return VmRequest(
        needed.pod,
        needed.uid,
        record.spec.node,
        labels_of(record.spec.labels),
        needed.current,
        needed.wanted,
        part.units,
        part.wanted_units,
    )
