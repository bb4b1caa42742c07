"""The messages between kube-scheduler and an extender, and how verdicts of plugins become answers. Computes only.

The keys are the capitalised names of Go's fields. Like Go, readers take them in any case, take null for what was left out, and ignore
what they do not know. Pods are kept as the objects that they are, and nodes as the bytes that came: a typed model would lose fields.
Source: `k8s.io/kube-scheduler/extender/v1`, reference/kubernetes.md 2.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from hosting.kubernetes.resources import Manifest
from protocol.texts import clean
from protocol.values import ZERO, Value
from scheduler.permits.core.model import Kind
from scheduler.placing.core.diagnosis import brief
from scheduler.placing.core.objects import NodeInfo
from scheduler.placing.core.values import Code, Status, new_status

T = TypeVar("T")
_NULL: Final = msgspec.Raw(b"null")
REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of a decoder: `ValueError` for texts that are no UTF-8, `RecursionError` for what is nested too deep."""


class MessageError(Exception):
    """A body that cannot be read. `faults` name each field at fault and what is wrong with it."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


# ------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """The body of filter and prioritize: a pod, and the nodes that are left for it.

    `nodes` are whole Node objects by name, as they came; None where only names were sent (`nodeCacheCapable: true`). `pod_text` are the
    bytes of the pod.
    """

    pod: Manifest
    node_names: tuple[str, ...]
    nodes: Mapping[str, msgspec.Raw] | None = None
    pod_text: msgspec.Raw = field(default_factory=lambda: _NULL, compare=False)


@dataclass(frozen=True, slots=True)
class ExtenderBindingArgs:
    """The body of bind: which pod goes to which node."""

    name: str
    namespace: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods, by UID, that would be deleted from a node, and how many of them a disruption budget protects."""

    uids: tuple[str, ...]
    num_pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class ExtenderPreemptionArgs:
    """The body of preempt: a pod, and for each candidate node who would have to leave it."""

    pod: Manifest
    victims: Mapping[str, Victims]


# ------------------------------------------------------------ answers


class ExtenderFilterResult(Value, frozen=True, rename="pascal"):
    """The answer to filter. Nodes that stay, in the form that was asked in; each node that does not, with the reason.

    `failed_nodes` may be helped by preemption, `failed_and_unresolvable_nodes` may not.
    """

    nodes: Any = None
    node_names: Sequence[str] | None = None
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class HostPriority(Value, frozen=True, rename="pascal"):
    """One element of the answer to prioritize: a node and its score, 0 to 10."""

    host: str
    score: int


class ExtenderBindingResult(Value, frozen=True, rename="pascal"):
    """The answer to bind; an empty text is success."""

    error: str = ""


class MetaPod(Value, frozen=True):
    """A victim."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(Value, frozen=True):
    """The victims of a node."""

    pods: Sequence[MetaPod] = msgspec.field(name="Pods")
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations")


class ExtenderPreemptionResult(Value, frozen=True):
    """The answer to preempt: the candidates that stay, always in this form."""

    victims: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


def node_list(nodes: Iterable[msgspec.Raw]) -> Manifest:
    return {"metadata": {}, "items": list(nodes)}


encode = msgspec.json.Encoder().encode


# ------------------------------------------------------------ reading


class _Meta(Value, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""


class _Head(Value, frozen=True):
    """The least that any object must tell."""

    metadata: _Meta


class _NodeList(Value, frozen=True):
    items: list[msgspec.Raw] | None = None


_Object: TypeAlias = dict[str, msgspec.Raw]
_NO_HEAD: Final = _Head(_Meta("-", uid="-"))
_DECODERS: Final[Mapping[Any, Any]] = {
    type_: msgspec.json.Decoder(type_)
    for type_ in (str, int, dict, list[str], list[msgspec.Raw], _Meta, _Head, _NodeList, _Object)
}


class _Fields:
    """The fields of one JSON object, and the faults that were found in reading them."""

    def __init__(self, fields: _Object, path: str, faults: list[str]) -> None:
        # Of keys that differ by their case only, the last one counts, as in Go.
        self._fields = {key.lower(): raw for key, raw in fields.items() if raw != _NULL}
        self._path = path
        self.faults = faults

    def fault(self, name: str, rule: str) -> None:
        self.faults.append(f"{self._path}{name}: {rule}")

    def text_of(self, name: str) -> msgspec.Raw:
        """The bytes of a value; those of null where it is left out."""
        return self._fields.get(name.lower(), _NULL)

    def optional(self, name: str, type_: type[T]) -> T | None:
        """The value; None where it is left out, or is a fault."""
        raw = self._fields.get(name.lower())
        if raw is None:
            return None
        try:
            return _decode(type_, raw)
        except REFUSALS as error:
            self.faults.append(_fault(f"{self._path}{name}", error))
            return None

    def required(self, name: str, type_: type[T], default: T) -> T:
        """The value; `default` where it is left out, which is a fault."""
        if name.lower() not in self._fields:
            self.fault(name, "must be there")
            return default
        found = self.optional(name, type_)
        return found if found is not None else default

    def text(self, name: str) -> str:
        """A text; an empty one is a fault."""
        found = self.required(name, str, "-")
        if not found:
            self.fault(name, "must not be empty")
        return found

    def inner(self, name: str, raw: msgspec.Raw) -> "_Fields":
        path = f"{self._path}{name}"
        try:
            fields = _decode(_Object, raw)
        except REFUSALS as error:
            self.faults.append(_fault(path, error))
            fields = {}
        return _Fields(fields, f"{path}.", self.faults)


def _decode(type_: type[T], raw: bytes | msgspec.Raw) -> T:
    """Raises one of `REFUSALS`."""
    decoder: msgspec.json.Decoder[T] = _DECODERS[type_]
    return decoder.decode(raw)


def _fault(path: str, error: Exception) -> str:
    """Says where within `path` the fault is; msgspec tells that as `… - at `$.metadata.name``."""
    said, _, place = str(error).partition(" - at `$")
    return f"{path}{place.rstrip('`')}: {said[:200]}"


def _fields_of(body: bytes) -> _Fields:
    try:
        fields = _decode(_Object, body)
    except REFUSALS as error:
        raise MessageError([_fault("body", error)]) from None
    return _Fields(fields, "", [])


def _checked(fields: _Fields, message: T) -> T:
    if fields.faults:
        raise MessageError(fields.faults)
    return message


def _pod(fields: _Fields) -> Manifest:
    head = fields.required("Pod", _Head, _NO_HEAD)
    if not head.metadata.uid:
        fields.fault("Pod.metadata.uid", "must be there")
    return (fields.optional("Pod", dict) or {}) if head is not _NO_HEAD else {}


def read_args(body: bytes, last: ExtenderArgs | None = None) -> ExtenderArgs:
    """The body of filter or prioritize. A pod that came in the same bytes as the `last` one is the same object. Raises `MessageError`."""
    fields = _fields_of(body)
    text = fields.text_of("Pod")
    pod = last.pod if last is not None and last.pod_text == text != _NULL else _pod(fields)
    names = fields.optional("NodeNames", list[str])
    nodes = fields.optional("Nodes", _NodeList)
    if (names is None) == (nodes is None) and not fields.faults:
        fields.fault("Nodes, NodeNames", "exactly one of them must be there")
    if nodes is None:
        return _checked(fields, ExtenderArgs(pod, tuple(names or ()), None, text))
    by_name = {}
    for place, raw in enumerate(nodes.items or ()):
        try:
            by_name[_decode(_Head, raw).metadata.name] = raw
        except REFUSALS as error:
            fields.faults.append(_fault(f"Nodes.items[{place}]", error))
    return _checked(fields, ExtenderArgs(pod, tuple(by_name), by_name, text))


def read_binding(body: bytes) -> ExtenderBindingArgs:
    """The body of bind. Raises `MessageError`."""
    fields = _fields_of(body)
    named = (fields.text(name) for name in ("PodName", "PodNamespace", "PodUID", "Node"))
    return _checked(fields, ExtenderBindingArgs(*named))


def read_preemption(body: bytes) -> ExtenderPreemptionArgs:
    """The body of preempt, in either form. Raises `MessageError`."""
    fields = _fields_of(body)
    pod = _pod(fields)
    metas = fields.optional("NodeNameToMetaVictims", _Object)
    whole = fields.optional("NodeNameToVictims", _Object)
    if (metas is None) == (whole is None) and not fields.faults:
        fields.fault("NodeNameToVictims, NodeNameToMetaVictims", "exactly one of them must be there")
    victims = {}
    for name, raw in (metas or {}).items():
        victims[name] = _victims(
            fields.inner(f"NodeNameToMetaVictims.{name}", raw), lambda pod: pod.text("UID")
        )
    for name, raw in (whole or {}).items():
        victims[name] = _victims(fields.inner(f"NodeNameToVictims.{name}", raw), _uid_of_pod)
    return _checked(fields, ExtenderPreemptionArgs(pod, victims))


def _victims(fields: _Fields, uid_of: Callable[[_Fields], str]) -> Victims:
    found = fields.optional("Pods", list[msgspec.Raw]) or ()
    uids = tuple(uid_of(fields.inner(f"Pods[{place}]", raw)) for place, raw in enumerate(found))
    return Victims(uids, fields.optional("NumPDBViolations", int) or 0)


def _uid_of_pod(fields: _Fields) -> str:
    found = fields.required("metadata", _Meta, _NO_HEAD.metadata)
    if not found.uid:
        fields.fault("metadata.uid", "must be there")
    return found.uid


MAX_EXTENDER_SCORE: Final = 10
"""The best score of an extender; kube-scheduler stretches it to 100."""
MOST_NODES_IN_FULL: Final = 10
"""With more nodes than that, reasons are brief."""
MAX_TEXT: Final = 1024
"""Characters of a reason; kube-scheduler joins those of all nodes to one text."""
UNKNOWN_NODE: Final = new_status(
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) are not in Parley's ledger yet"
).by("ledger")
"""Nothing may be placed where nobody counts, and no preemption would change that."""


def failed_nodes(
    asked: Sequence[str], known: Sequence[NodeInfo], statuses: Mapping[str, Status]
) -> dict[str, Status]:
    """The status of each node that was asked for and is dropped, in the order in which they were asked for."""
    if not statuses and len(known) == len(asked):
        return {}
    names = {node.name for node in known}
    found = {name: UNKNOWN_NODE if name not in names else statuses.get(name) for name in asked}
    return {name: status for name, status in found.items() if status is not None}


def texts(failed: Mapping[str, Status], *, are_resolvable: bool) -> dict[str, str]:
    """Why nodes are dropped: those where preemption may help, or the others.

    kube-scheduler counts nodes by their whole text and writes all of them to the pod's status: of many nodes each reason is
    told without what is peculiar to the node.
    """
    is_brief = len(failed) > MOST_NODES_IN_FULL
    return {
        name: clean(_text(status, is_brief=is_brief), MAX_TEXT)
        or f"rejected by {status.plugin or 'a plugin'}"
        for name, status in failed.items()
        if (status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE) is are_resolvable
    }


def _text(status: Status, *, is_brief: bool) -> str:
    return ", ".join(map(brief, status.reasons)) if is_brief else status.message


def priorities(asked: Iterable[str], totals: Mapping[str, int], best: int) -> list[HostPriority]:
    """The score of each node that was asked for, 0 to 10, where `best` is the highest total that there can be.

    Nodes without a total have 0, the same as kube-scheduler takes for hosts that are left out.
    """
    scores = {total: _scaled(total, best) for total in {0, *totals.values()}}  # many nodes are alike
    return [HostPriority(name, scores[totals.get(name, 0)]) for name in asked]


def _scaled(total: int, best: int) -> int:
    """`total` of `best` in tenths, halves up."""
    in_range = min(max(total, 0), best)
    return (2 * in_range * MAX_EXTENDER_SCORE + best) // (2 * best) if best > 0 else 0


def without_pods(node: NodeInfo, uids: Collection[str], generation: int) -> NodeInfo:
    """The node as if these pods had left it. `generation` is another one than that of any node that there is.

    A VM that is migrating frees nothing: the move keeps its room until it has ended.
    """
    gone = {
        holder
        for holder, row in node.rows.items()
        if holder.uid in uids and holder.kind is not Kind.RESERVATION and not row.is_migrating
    }
    freed = sum((node.rows[holder].reserved for holder in gone), start=ZERO)
    return replace(
        node,
        reserved=node.reserved - freed,
        rows={holder: row for holder, row in node.rows.items() if holder not in gone},
        pods=tuple(pod for pod in node.pods if pod.holder not in gone),
        generation=generation,
    )
