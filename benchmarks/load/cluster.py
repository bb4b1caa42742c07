"""A cluster file of any size. Written as text, because dumping 10,000 VMs with PyYAML takes longer than the benchmark."""

import uuid
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "bench"
MOST_UNITS = 8
"""A VM's maximum in units of 1 CPU and 1 GiB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many VMs on how many nodes, as evenly as it goes; VMs of one node are neighbours by index."""

    vms: int
    nodes: int

    @property
    def per_node(self) -> int:
        return -(-self.vms // self.nodes)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool whose members are the VMs with these indices; `max_units` None is no limit of its own."""

    name: str
    members: range
    max_units: int | None = None


def name_of(index: int) -> str:
    return f"vm-{index:05}"


def uid_of(index: int) -> str:
    """The UID of a VM's pod."""
    return str(uuid.UUID(int=(0x6B1F0F6E0A6E4B43 << 64) | (0x8A66 << 48) | index))


def write(
    path: Path,
    shape: Shape,
    sizes: tuple[int, ...] | None = None,
    pools: tuple[Pool, ...] = (),
    room: int | None = None,
) -> Path:
    """Write the file; with `sizes` (units, by index) the cluster shows what each VM has, else it shows no sizes.

    A node has so many units of `room`, by default for the maximum of every VM on it, so that growth is granted in full however much is
    unsettled.
    """
    room = shape.per_node * MOST_UNITS if room is None else room
    lines = ["nodes:"]
    lines += [
        f'- {{name: node-{index:04}, allocatable: {{cpu: "{room}", memory: {room}Gi}}, '
        'computeUnit: {cpu: "1", memory: 1Gi}}'
        for index in range(shape.nodes)
    ]
    lines += _pools(pools)
    pool_of = {index: pool.name for pool in pools for index in pool.members}
    lines.append("vms:")
    for index in range(shape.vms):
        shown = ""
        if sizes is not None:
            shown = f', size: {{cpu: "{sizes[index]}", memory: {sizes[index]}Gi}}'
        if index in pool_of:
            shown += f", labels: {{parley.dev/pool: {pool_of[index]}}}"
        lines.append(
            f'- {{namespace: {NAMESPACE}, name: {name_of(index)}, uid: "{uid_of(index)}", '
            f'node: node-{index // shape.per_node:04}, min: {{cpu: "1", memory: 1Gi}}, '
            f'max: {{cpu: "{MOST_UNITS}", memory: {MOST_UNITS}Gi}}{shown}}}'
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def _pools(pools: tuple[Pool, ...]) -> list[str]:
    """The pools in units of 1 CPU and 1 GiB; each has a tenant of its own name."""
    lines = ["pools:"] if pools else []
    for pool in pools:
        limits = "" if pool.max_units is None else f", limits: {{maxUnits: {pool.max_units}}}"
        lines.append(
            f'- {{name: {pool.name}, computeUnit: {{cpu: "1", memory: 1Gi}}, '
            f"labels: {{parley.dev/tenant: {pool.name}}}{limits}}}"
        )
    return lines
