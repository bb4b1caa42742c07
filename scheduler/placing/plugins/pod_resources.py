"""What a pod asks for beside CPU and memory: amounts of other resources, and ports of its node. Computes only."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from protocol import quantities
from protocol.values import RESOURCE_NAMES
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins.node_selectors import spec_of

PODS: Final = "pods"
"""The resource of which each pod takes one."""
_OF_THE_LEDGER: Final = frozenset(RESOURCE_NAMES)
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - what pods say, nothing is bound

Amounts = Mapping[str, int]
"""Whole units by resource; a resource that is left out is 0."""


class HostPort(NamedTuple):
    """A port that a pod takes of its node."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: "HostPort") -> bool:
        """Whether both cannot be on one node: no address stands for all of them."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or bool(_ANY_ADDRESS & {self.address, other.address})

    def __str__(self) -> str:
        address = "" if self.address in _ANY_ADDRESS else f"{self.address}:"
        return f"{address}{self.port}/{self.protocol}"


def amounts(written: object) -> dict[str, int]:
    """The amounts of a `requests`, `allocatable` or `overhead` without CPU and memory, rounded up. Raises `QuantityError`."""
    found = written if isinstance(written, Mapping) else {}
    return {
        str(name): quantities.parse(str(amount)).value()
        for name, amount in found.items()
        if name not in _OF_THE_LEDGER
    }


def requests(pod: PodInfo) -> dict[str, int]:
    """What kube-scheduler counts for a pod: containers and sidecars together, or the largest init container with the sidecars
    before it, and the overhead. Raises `QuantityError`."""
    spec = spec_of(pod.manifest)
    running, before, peak = dict[str, int](), dict[str, int](), dict[str, int]()
    for container in spec.get("containers") or ():
        _add(running, _of_container(container))
    for container in spec.get("initContainers") or ():
        own = _of_container(container)
        if container.get("restartPolicy") == "Always":
            _add(running, own)
            _add(before, own)
            _raise(peak, before)
        else:
            _add(own, before)
            _raise(peak, own)
    _raise(running, peak)
    _add(running, amounts(spec.get("overhead")))
    return {name: amount for name, amount in running.items() if amount}


def total(pods: Iterable[PodInfo]) -> dict[str, int]:
    """What pods ask for together, with their number as `pods`. A pod that cannot be read counts as a pod."""
    found = {PODS: 0}
    for pod in pods:
        found[PODS] += 1
        try:
            _add(found, requests(pod))
        except quantities.QuantityError:
            continue
    return found


def host_ports(pod: PodInfo) -> tuple[HostPort, ...]:
    """The ports that containers and sidecars take of the node, without repetition."""
    return tuple(dict.fromkeys(_ports(spec_of(pod.manifest))))


def _ports(spec: Mapping[str, Any]) -> Iterator[HostPort]:
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for each in container.get("ports") or ():
            if each.get("hostPort"):
                yield HostPort(
                    str(each.get("hostIP") or ""), str(each.get("protocol") or "TCP"), int(each["hostPort"])
                )


def _of_container(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def _add(to: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def _raise(to: dict[str, int], least: Amounts) -> None:
    for name, amount in least.items():
        to[name] = max(to.get(name, 0), amount)
