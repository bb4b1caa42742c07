"""The schedulers behind a Service: the ready endpoints of its EndpointSlices. Computes only."""

from collections.abc import Iterable
from typing import Final

from hosting.addresses import endpoint
from hosting.kubernetes.resources import Manifest

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""Label of an EndpointSlice: its Service."""


def urls(slices: Iterable[Manifest], port: int) -> tuple[str, ...]:
    """The URLs of the endpoints that are ready, in a fixed order. An endpoint that does not say is ready (EndpointConditions of
    discovery.k8s.io/v1); one that is terminating is not."""
    found = {
        f"http://{endpoint(address, port)}/"
        for each in slices
        for one in each.get("endpoints") or ()
        if _is_ready(one)
        for address in one.get("addresses") or ()
    }
    return tuple(sorted(found))


def _is_ready(one: Manifest) -> bool:
    conditions = one.get("conditions") or {}
    return conditions.get("ready") is not False
