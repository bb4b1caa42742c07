"""The labels and annotations of a pod about its eviction, and the pods that are never evicted. Computes only.

Our names are read first, then the published ones (reference/koordinator.md 3.3). A number that cannot be read counts as left out. A word
that cannot be read protects the pod, and a list of tasks that cannot be read allows none.
"""

import json
from typing import Final

from agent.node.qos.core.evicting import EvictionMarks
from agent.node.qos.core.states import PodState, VmState
from hosting.kubernetes import names

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the mirror of a static pod: deleting the mirror does not end the pod."""
APP: Final = "app.kubernetes.io/name"
AGENT: Final = "parley-agent"
"""The agent's own pods, as `deploy` labels them."""


def marks_of(pod: PodState, vm: VmState | None) -> EvictionMarks:
    """The marks of a pod. `vm` is the VM that the agent scales in it, if any."""
    enabled = _text(pod, names.EVICTION_ENABLED)
    is_enabled = enabled == "true" if enabled is not None else None
    return EvictionMarks(
        is_enabled,
        _number(_text(pod, names.EVICTION_PRIORITY)) or 0,
        _number(_text(pod, names.SUB_PRIORITY)),
        _tasks(_text(pod, names.EVICTION_POLICY)),
        _obstacle(pod, vm, is_asked_for=is_enabled is True),
    )


def _text(pod: PodState, name: str) -> str | None:
    published = names.KOORDINATOR + name.partition("/")[2]
    for key in (name, published):
        for found in (pod.labels, pod.annotations):
            if key in found:
                return found[key]
    return None


def _number(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def _tasks(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return (
        frozenset(each for each in found if isinstance(each, str)) if isinstance(found, list) else frozenset()
    )


def _obstacle(pod: PodState, vm: VmState | None, *, is_asked_for: bool) -> str:
    if MIRROR in pod.annotations or pod.controller_kind == "Node":
        return "static pod: the node would keep it"
    if pod.labels.get(APP) == AGENT:
        return "the agent itself"
    is_vm = vm is not None or pod.labels.get(names.ENABLED) == "true" or names.NEON_VM_NAME in pod.labels
    if is_vm and (
        pod.annotations.get(names.EVICT) == "true" or (vm is not None and vm.is_evicted_when_stuck)
    ):
        return f"{names.EVICT}, or evictWhenStuck of its ScalingPolicy, has the agent evict it when it is denied what it needs"
    if is_vm and not is_asked_for:
        return f"scaled by Parley, without {names.EVICTION_ENABLED}"
    if pod.controller_kind == "DaemonSet" and not is_asked_for:
        return f"a DaemonSet makes it anew on the same node, without {names.EVICTION_ENABLED}"
    return ""
