"""The labels and annotations of a pod about its eviction, and the pods that are never evicted. Computes only.

Our names are read first, then the published ones (reference/koordinator.md 3.3). A mark that cannot be read is a fault and protects the pod: a
number has it go after all others, a word keeps it from going, and a list of tasks allows none.
"""

import json
from typing import Final

from agent.node.qos.core.evicting import LAST, EvictionMarks
from agent.node.qos.core.states import PodState, VmState
from hosting.kubernetes import names
from hosting.kubernetes.annotations import short

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the mirror of a static pod: deleting the mirror does not end the pod."""
APP: Final = "app.kubernetes.io/name"
AGENT: Final = "parley-agent"
"""The agent's own pods, as `deploy` labels them."""


def marks_of(pod: PodState, vm: VmState | None) -> EvictionMarks:
    """The marks of a pod. `vm` is the VM that the agent scales in it, if any."""
    faults: list[str] = []
    is_enabled = _word(pod, faults)
    return EvictionMarks(
        is_enabled,
        _number(pod, names.EVICTION_PRIORITY, faults) or 0,
        _number(pod, names.SUB_PRIORITY, faults),
        _tasks(pod, faults),
        _obstacle(pod, vm, is_asked_for=is_enabled is True),
        tuple(faults),
    )


def _text(pod: PodState, name: str) -> tuple[str, str | None]:
    """The text with the name that it was found by."""
    published = names.KOORDINATOR + name.partition("/")[2]
    for key in (name, published):
        for found in (pod.labels, pod.annotations):
            if key in found:
                return key, found[key]
    return name, None


def _word(pod: PodState, faults: list[str]) -> bool | None:
    name, text = _text(pod, names.EVICTION_ENABLED)
    if text not in (None, "true", "false"):
        faults.append(f'{name}: must be true or false (found {short(text)}): counts as "false"')
    return text == "true" if text is not None else None


def _number(pod: PodState, name: str, faults: list[str]) -> int | None:
    name, text = _text(pod, name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 19:
        return int(text)
    faults.append(
        f"{name}: must be a whole number (found {short(text)}): the pod is evicted after all others"
    )
    return LAST


def _tasks(pod: PodState, faults: list[str]) -> frozenset[str] | None:
    name, text = _text(pod, names.EVICTION_POLICY)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return frozenset(found)
    faults.append(f"{name}: must be a list of tasks in JSON (found {short(text)}): no task evicts the pod")
    return frozenset()


def _obstacle(pod: PodState, vm: VmState | None, *, is_asked_for: bool) -> str:
    if MIRROR in pod.annotations or pod.controller_kind == "Node":
        return "static pod: the node would keep it"
    if pod.labels.get(APP) == AGENT:
        return "the agent itself"
    is_vm = (
        vm is not None
        or pod.labels.get(names.ENABLED, "false") != "false"
        or names.NEON_VM_NAME in pod.labels
    )
    if is_vm and (
        pod.annotations.get(names.EVICT) == "true" or (vm is not None and vm.is_evicted_when_stuck)
    ):
        return f"{names.EVICT}, or evictWhenStuck of its ScalingPolicy, has the agent evict it when it is denied what it needs"
    if is_vm and not is_asked_for:
        return f"scaled by Parley, without {names.EVICTION_ENABLED}"
    if pod.controller_kind == "DaemonSet" and not is_asked_for:
        return f"a DaemonSet makes it anew on the same node, without {names.EVICTION_ENABLED}"
    return ""
