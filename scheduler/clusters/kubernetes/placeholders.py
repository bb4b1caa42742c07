"""Placeholders as pods: pending pods of negative priority in the scheduler's own namespace, one for each pool of nodes at most, by which a cluster
autoscaler learns of growth that is denied. `scheduler.permits.core.placeholders` decides which there are to be.

kube-scheduler places them, if there is room after all; then they are deleted. The ledger counts none of them.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.core.known import Key
from hosting.kubernetes.resources import PODS, Manifest
from hosting.logs import Logger
from protocol.values import ZERO
from scheduler.clusters.kubernetes.reading import MALFORMED, is_placeholder
from scheduler.permits.core.placeholders import (
    NodePool,
    Placeholder,
    PlaceholderRules,
    PlaceholderState,
    PoolNode,
    StandingPlaceholder,
    denied_vms,
    plan,
)
from scheduler.permits.core.state import CoreState
from scheduler.ports import LeadershipGuard, NotLeadingError

LOOK_S: Final = 5.0
STANDING_LOOK_S: Final = 1.0
"""While one stands: one that gets a node takes room there, by the kubelet's count, until it is gone."""
END_DEADLINE_S: Final = 2.0
"""How long the API server has to delete them when this process leads no more; else the next leader takes them over."""
CONTAINER: Final = "placeholder"
IMAGE: Final = "pause"
"""It is never run: a placeholder that gets a node is deleted, whether the node has this image or not."""
FINGERPRINT: Final = "parley.dev/fingerprint"
NODE_POOL: Final = "parley.dev/node-pool"
_RETRY: Final = Backoff(base_s=LOOK_S, cap_s=60.0)
_PASSING: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeleted",
    "DeletionCandidate",
)
"""How the keys of taints begin that come and go with the state of a node."""
_LOCKED: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pool_node(manifest: Manifest, labels: tuple[str, ...]) -> PoolNode:
    """A node with its pool: by the first of `labels` that it has. Raises one of `MALFORMED`."""
    found = objects.labels(manifest)
    label = next((each for each in labels if each in found), "")
    allocatable = pods.resources(objects.amounts((manifest.get("status") or {}).get("allocatable")))
    taints = frozenset(
        (str(each["key"]), str(each.get("value") or ""), str(each["effect"]))
        for each in (manifest.get("spec") or {}).get("taints") or ()
        if not str(each["key"]).startswith(_PASSING)
    )
    return PoolNode(NodePool(label, found.get(label, "")), allocatable.max(ZERO), taints)


def body_of(placeholder: Placeholder, namespace: str) -> Manifest:
    """The pod. The template goes before what is usual, and not before what makes it a placeholder."""
    pool, rules = placeholder.pool, placeholder.rules
    usual: Manifest = {
        "metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
        "spec": {
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{"name": CONTAINER, "image": IMAGE, "securityContext": _LOCKED}],
        },
    }
    written = placeholder.amount.written()
    requests = {name: written[name] for name, amount in placeholder.amount.named() if amount}
    own: Manifest = {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": placeholder.name,
            "namespace": namespace,
            "labels": {names.PLACEHOLDER: "true"},
            "annotations": {FINGERPRINT: placeholder.fingerprint, NODE_POOL: str(pool)},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "priorityClassName": rules.priority_class,
            **({"nodeSelector": {pool.label: pool.value}} if pool.label else {}),
            "containers": [{"name": CONTAINER, "resources": {"requests": requests}}],
        },
    }
    body: Manifest = _merged(_merged(usual, rules.template), own)
    tolerations = [
        {"key": key, "operator": "Equal", "value": value, "effect": effect}
        for key, value, effect in placeholder.taints
    ]
    body["spec"]["tolerations"] = [*(body["spec"].get("tolerations") or ()), *tolerations]
    return body


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, `above` first; containers are merged by their names, other lists are replaced."""
    found = {**below, **above}
    for key in below.keys() & above.keys():
        first, second = below[key], above[key]
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            found[key] = _merged(first, second)
        elif key == "containers":
            by_name = {each["name"]: each for each in first}
            by_name |= {each["name"]: _merged(by_name.get(each["name"], {}), each) for each in second}
            found[key] = list(by_name.values())
    return found


def _standing(pod: Manifest) -> StandingPlaceholder:
    is_placed = bool((pod.get("spec") or {}).get("nodeName")) or pods.is_terminal(pod)
    return StandingPlaceholder(
        objects.name(pod),
        objects.uid(pod),
        objects.annotations(pod).get(FINGERPRINT, ""),
        is_placed,
        "deletionTimestamp" in pod["metadata"],
    )


@dataclass(frozen=True, slots=True)
class PlaceholderSources:
    """The core with its VMs, and the nodes as the API server shows them. `guard` lets no pod be made if another process leads."""

    core: CoreState
    nodes: Callable[[], Mapping[Key, Manifest]]
    guard: LeadershipGuard


class Placeholders:
    """The placeholders in a namespace. `run` keeps them as they should be; `use` says by which settings, None for none at all."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        sources: PlaceholderSources,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api, self._namespace, self._sources = api, namespace, sources
        self._clock, self._rng, self._log = clock, rng, log
        self._rules: PlaceholderRules | None = None
        self._state = PlaceholderState(clock())
        self._standing: tuple[StandingPlaceholder, ...] | None = None
        """As they were seen or made last; None before the first look."""
        self._faults = FaultLog(log, "placeholders cannot be kept", "placeholders can be kept again")

    def use(self, rules: PlaceholderRules | None) -> None:
        self._rules = rules

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.look()
            except NotLeadingError:
                return
            except KubernetesError as error:
                failures += 1
                self._faults.failed(error)
                await asyncio.sleep(_RETRY.delay_s(failures, self._rng.random()))
            else:
                failures = 0
                self._faults.worked()
                await asyncio.sleep(STANDING_LOOK_S if self._standing else LOOK_S)

    async def look(self) -> None:
        """Compare once with what there should be, and bring it in line. Raises `KubernetesError`, `NotLeadingError`."""
        if self._rules is None and self._standing == ():
            return
        standing = await self._list()
        rules = self._rules
        found = plan(
            self._state,
            tuple(denied_vms(self._sources.core)),
            dict(self._nodes(rules)),
            rules,
            standing,
            self._clock(),
        )
        self._standing = tuple(each for each in standing if each not in found.delete)
        for each in found.delete:
            self._log.info("placeholder deleted", pod=each.name, placed=each.is_placed)
            await self._delete(each)
        self._state = found.state
        for one in found.create:
            self._sources.guard.check(0)
            made = await self._create(one)
            if made is not None:
                self._standing = (*self._standing, made)

    async def end(self) -> None:
        """Delete those that are known, as far as the API server can be asked in time."""
        try:
            async with asyncio.timeout(END_DEADLINE_S):
                for each in self._standing or ():
                    await self._delete(each)
        except (TimeoutError, KubernetesError) as error:
            self._log.warning("placeholders stay for the next leader", error=str(error))

    def _nodes(self, rules: PlaceholderRules | None) -> Iterator[tuple[str, PoolNode]]:
        """Nodes that can be read; those of which more is wrong are told as faults elsewhere."""
        for (_, name), manifest in self._sources.nodes().items():
            try:
                yield name, pool_node(manifest, rules.labels if rules is not None else ())
            except MALFORMED:
                continue

    async def _list(self) -> tuple[StandingPlaceholder, ...]:
        query = {"labelSelector": f"{names.PLACEHOLDER}=true"}
        found = await self._api.list(PODS, self._namespace, query=query)
        return tuple(
            _standing(pod) for pod in found.get("items") or () if is_placeholder(pod, self._namespace)
        )

    async def _create(self, one: Placeholder) -> StandingPlaceholder | None:
        """None if the one that was there before is still on its way out: the next look tries again."""
        try:
            made = await self._api.create(PODS, self._namespace, body_of(one, self._namespace))
        except RefusedError as error:
            if error.is_conflict:
                return None
            raise
        self._log.info("placeholder made", pod=one.name, pool=str(one.pool), requests=str(one.amount))
        return _standing(made)

    async def _delete(self, each: StandingPlaceholder) -> None:
        """Nothing, if it is not there any more."""
        try:
            await self._api.delete(
                PODS, self._namespace, each.name, body={"preconditions": {"uid": each.uid}}
            )
        except RefusedError as error:
            if not (error.is_not_found or error.is_conflict):
                raise
