"""A host's /sys as files, as the kernel has them."""

from pathlib import Path


def describe(sys: Path, cpus: list[tuple[int, int, int, int]], memory_kb: int = 4 * 1024 * 1024) -> None:
    """Files for CPUs as (CPU, core, socket, NUMA node), each NUMA node with that much memory."""
    at = sys / "devices" / "system"
    (at / "cpu").mkdir(parents=True, exist_ok=True)
    (at / "cpu" / "online").write_text(",".join(str(cpu) for cpu, *_ in cpus) + "\n")
    for cpu, core, socket, numa_node in cpus:
        directory = at / "cpu" / f"cpu{cpu}"
        (directory / "topology").mkdir(parents=True)
        (directory / "topology" / "core_id").write_text(f"{core}\n")
        (directory / "topology" / "physical_package_id").write_text(f"{socket}\n")
        (directory / f"node{numa_node}").mkdir()
        zone = at / "node" / f"node{numa_node}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "meminfo").write_text(f"Node {numa_node} MemTotal:       {memory_kb} kB\n")


EIGHT = [(cpu, cpu // 2 % 2, cpu // 4, cpu // 4) for cpu in range(8)]
"""Two sockets, each a NUMA node of two cores with two threads."""
