"""Fuzzing the readers of what is no message: pages, error bodies, VM objects. A value or a refusal with faults."""

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import codec, exporter, vminfo
from protocol.errors import RemoteProtocolError

T = TypeVar("T")
relaxed = settings(deadline=None, max_examples=40)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["00000000-0000-0000-0000-000000000001", "1Gi", "1e999"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _value_or_refusal(read: Callable[[], T]) -> T | None:
    """The result of `read`, or None for a proper refusal; any other exception fails the test."""
    refusal = None
    try:
        return read()
    except RemoteProtocolError as error:
        refusal = error
    assert refusal.faults
    assert refusal.status == 400
    str(refusal).encode()
    return None


def _mutate(content: Any, data: st.DataObject) -> Any:
    """`content` with one value in it replaced by any JSON value, or with one field left out."""
    if not isinstance(content, dict | list) or not content or data.draw(st.booleans()):
        return data.draw(json_values)
    if isinstance(content, list):
        place = data.draw(st.integers(0, len(content) - 1))
        return [_mutate(item, data) if index == place else item for index, item in enumerate(content)]
    name = data.draw(st.sampled_from(sorted(content)))
    if data.draw(st.integers(0, 3)) == 0:
        return {key: item for key, item in content.items() if key != name}
    return {**content, name: _mutate(content[name], data)}


@relaxed
@given(st.binary(max_size=200), st.sampled_from([b"", b"node_load1", b"node_load5{", b'node_load1{a="']))
def test_any_page_is_metrics_or_a_refusal(noise: bytes, start: bytes) -> None:
    page = start + noise
    loads = _value_or_refusal(lambda: exporter.read_metrics(page, "node_"))
    assert loads is None or math.isfinite(loads.load_average_1min + loads.load_average_5min)
    found = _value_or_refusal(lambda: exporter.samples(page, ["node_load1", "node_load5"]))
    assert all(map(math.isfinite, (found or {}).values()))


@relaxed
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_error_body_is_read_or_none(body: bytes) -> None:
    read = codec.decode_error(body)
    assert read is None or isinstance(read, codec.ReadErrorBody)


@relaxed
@given(data=st.data())
def test_any_virtual_machine_is_read_or_refused(data: st.DataObject) -> None:
    guest = {
        "cpus": {"min": 1, "max": 4, "use": 2},
        "memorySlots": {"min": 1, "max": 8, "use": 2},
        "memorySlotSize": "1Gi",
    }
    vm = _mutate({"metadata": {"name": "a", "labels": {}}, "spec": {"guest": guest}}, data)
    info = _value_or_refusal(lambda: vminfo.extract_vm_info(vm if isinstance(vm, dict) else {}))
    assert info is None or not info.using().has_field_greater_than(info.max())
