"""How two descriptions of a node's VMs differ."""

from collections.abc import Iterator, Mapping

from agent.core.ports import VmChange, VmDescribed, VmDescription, VmRemoved


def changes_between(
    before: Mapping[str, VmDescription], now: Mapping[str, VmDescription]
) -> Iterator[VmChange]:
    """The changes that turn the VMs of `before` into those of `now`, by their names. A VM made anew ends first."""
    for name, spec in before.items():
        if name not in now or now[name].vm.pod_uid != spec.vm.pod_uid:
            yield VmRemoved(name)
    for name, spec in now.items():
        if before.get(name) != spec:
            yield VmDescribed(spec)
