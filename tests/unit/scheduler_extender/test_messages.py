"""Bodies of kube-scheduler are read as Go reads them, and the answers are what Go's decoder takes."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.placing.kube_extender.messages import (
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
    HostPriority,
    MessageError,
    MetaPod,
    MetaVictims,
    Victims,
    encode,
    node_list,
    read_args,
    read_binding,
    read_preemption,
)
from tests.unit.scheduler_extender.bodies import BIND, BY_NAMES, META_VICTIMS, POD, VICTIMS, WHOLE_NODES


def lowered(body: str) -> bytes:
    """The same with other cases in the names of Go's fields, and with some that nobody knows."""
    for name in (
        "Pod",
        "Nodes",
        "NodeNames",
        "NodeNameToVictims",
        "NodeNameToMetaVictims",
        "PodUID",
        "PodName",
        "Node",
    ):
        body = body.replace(f'"{name}":', f'"{name.lower()}":')
    for name in ("Pods", "UID", "NumPDBViolations", "PodNamespace"):
        body = body.replace(f'"{name}":', f'"{name.swapcase()}":')
    return body.replace("{", '{"SomethingNew": {"a": [1]}, ', 1).encode()


@pytest.mark.parametrize("written", [str.encode, lowered])
def test_bodies_are_read(written: Callable[[str], bytes]) -> None:
    args = read_args(written(BY_NAMES))
    assert (args.pod, args.node_names, args.nodes) == (json.loads(POD), ("a", "b"), None)

    whole = read_args(written(WHOLE_NODES))
    assert whole.node_names == ("a", "b")
    assert whole.nodes is not None
    assert b'"kept": [1, 2.50, null]' in bytes(whole.nodes["a"])

    uid = "7a3f2c9e-0c57-4b0e-9b52-5d1f1d0f7a10"
    assert read_binding(written(BIND)) == ExtenderBindingArgs("web-1", "shop", uid, "a")
    assert read_preemption(written(META_VICTIMS)).victims == {
        "a": Victims(("uid-one", "uid-two"), 1),
        "b": Victims(()),
    }
    assert read_preemption(written(VICTIMS)).victims == {"a": Victims(("uid-one",))}


HEAD = '{"metadata": {"name": "a", "uid": "x"}}'
FAULTS: dict[str, tuple[Callable[[bytes], Any], bytes, list[str]]] = {
    "empty": (read_args, b"", ["body: Input data was truncated"]),
    "cut": (read_args, b'{"Pod": {"meta', ["body: Input data was truncated"]),
    "no JSON": (read_binding, b"\x00\x01", ["body: JSON is malformed: invalid character (byte 0)"]),
    "a list": (read_preemption, b"[]", ["body: Expected `object`, got `array`"]),
    "nested without end": (read_args, b'{"Pod":' + b"[" * 100_000, ["body: "]),
    "no UTF-8": (
        read_args,
        b'{"Pod": {"metadata": {"name": "\xff", "uid": "x"}}, "NodeNames": []}',
        ["Pod: 'utf-8' codec can't decode"],
    ),
    "nothing in it": (read_args, b"{}", ["Pod: must be there"]),
    "no nodes": (
        read_args,
        f'{{"Pod": {HEAD}, "Nodes": null}}'.encode(),
        ["Nodes, NodeNames: exactly one of them must be there"],
    ),
    "both forms": (
        read_args,
        f'{{"Pod": {HEAD}, "Nodes": {{"items": null}}, "NodeNames": []}}'.encode(),
        ["Nodes, NodeNames: exactly one of them must be there"],
    ),
    "all faults at once": (
        read_args,
        b'{"Pod": {"metadata": {"name": 4}}, "NodeNames": ["a", 1]}',
        ["Pod.metadata.name: Expected `str`, got `int`", "NodeNames[1]: Expected `str`, got `int`"],
    ),
    "a node without a name": (
        read_args,
        f'{{"Pod": {HEAD}, "Nodes": {{"items": [{HEAD}, {{"metadata": {{}}}}]}}}}'.encode(),
        ["Nodes.items[1].metadata: Object missing required field `name`"],
    ),
    "a pod without a UID": (
        read_args,
        b'{"Pod": {"metadata": {"name": "a"}}, "NodeNames": []}',
        ["Pod.metadata.uid: must be there"],
    ),
    "a bind of nobody": (
        read_binding,
        b'{"PodName": "a", "PodNamespace": "", "PodUID": null, "Node": 3}',
        ["PodNamespace: must not be empty", "PodUID: must be there", "Node: Expected `str`, got `int`"],
    ),
    "victims of neither form": (
        read_preemption,
        f'{{"Pod": {HEAD}}}'.encode(),
        ["NodeNameToVictims, NodeNameToMetaVictims: exactly one of them must be there"],
    ),
    "a victim without a UID": (
        read_preemption,
        f'{{"Pod": {HEAD}, "NodeNameToMetaVictims": {{"n": {{"Pods": [{{}}]}}, "m": 3}}}}'.encode(),
        [
            "NodeNameToMetaVictims.n.Pods[0].UID: must be there",
            "NodeNameToMetaVictims.m: Expected `object`, got `int`",
        ],
    ),
    "a victim that is no pod": (
        read_preemption,
        f'{{"Pod": {HEAD}, "NodeNameToVictims": {{"n": {{"Pods": [{{"metadata": {{"name": "a"}}}}]}}}}}}'.encode(),
        ["NodeNameToVictims.n.Pods[0].metadata.uid: must be there"],
    ),
}


@pytest.mark.parametrize(("read", "body", "faults"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_read_is_told_by_field(
    read: Callable[[bytes], Any], body: bytes, faults: list[str]
) -> None:
    with pytest.raises(MessageError) as raised:
        read(body)
    assert len(raised.value.faults) == len(faults)
    assert all(found.startswith(fault) for found, fault in zip(raised.value.faults, faults, strict=True))


def test_answers_have_the_keys_of_go() -> None:
    """Null for what is not set, and nodes as they came, to the last digit."""
    node = msgspec.Raw(b'{"metadata":{"name":"a"},"kept":2.50}')
    written = [
        encode(ExtenderFilterResult(node_names=["a"], failed_nodes={"b": "full"})),
        encode(ExtenderFilterResult(node_list([node]), failed_and_unresolvable_nodes={"b": "x"}, error="no")),
        encode(ExtenderBindingResult("no")),
        encode([HostPriority("a", 7)]),
        encode(ExtenderPreemptionResult({"a": MetaVictims([MetaPod("x")], 2)})),
    ]
    assert b"\n".join(written).decode() == ANSWERS


ANSWERS = """\
{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"full"},"FailedAndUnresolvableNodes":{},"Error":""}
{"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"},"kept":2.50}]},"NodeNames":null,"FailedNodes":{},\
"FailedAndUnresolvableNodes":{"b":"x"},"Error":"no"}
{"Error":"no"}
[{"Host":"a","Score":7}]
{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"x"}],"NumPDBViolations":2}}}"""
