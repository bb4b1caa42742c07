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
        """VMs of a full node."""
        return -(-self.vms // self.nodes)


def name_of(index: int) -> str:
    """The name of a VM's pod."""
    return f"vm-{index:05}"


def uid_of(index: int) -> str:
    """The UID of a VM's pod."""
    return str(uuid.UUID(int=(0x6B1F0F6E0A6E4B43 << 64) | (0x8A66 << 48) | index))


def write(path: Path, shape: Shape, sizes: tuple[int, ...] | None = None) -> Path:
    """Write the file; with `sizes` (units, by index) the cluster shows what each VM has, else it shows no sizes.

    A node has room for the maximum of every VM on it, so that growth is granted in full however much is unsettled.
    """
    room = shape.per_node * MOST_UNITS
    lines = ["nodes:"]
    lines += [
        f'- {{name: node-{index:04}, allocatable: {{cpu: "{room}", memory: {room}Gi}}, '
        'computeUnit: {cpu: "1", memory: 1Gi}}'
        for index in range(shape.nodes)
    ]
    lines.append("vms:")
    for index in range(shape.vms):
        shown = ""
        if sizes is not None:
            shown = f', size: {{cpu: "{sizes[index]}", memory: {sizes[index]}Gi}}'
        lines.append(
            f'- {{namespace: {NAMESPACE}, name: {name_of(index)}, uid: "{uid_of(index)}", '
            f'node: node-{index // shape.per_node:04}, min: {{cpu: "1", memory: 1Gi}}, '
            f'max: {{cpu: "{MOST_UNITS}", memory: {MOST_UNITS}Gi}}{shown}}}'
        )
    path.write_text("\n".join(lines) + "\n")
    return path
