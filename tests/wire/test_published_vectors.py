"""The behaviour of the published Go package, vector by vector: ../shared/golden/neon-api-v0.1.13.jsonl beside the repository.

Exceptions stand in named tables keyed by the exact input; each is granted by the README beside the vectors.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol import codec, exporter, float32, quantities, vminfo, wire
from protocol.errors import RemoteProtocolError
from protocol.versions import InformantProtoVersion, PluginProtoVersion, VersionRange

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "golden" / "neon-api-v0.1.13.jsonl"
OPS = (
    "encode",
    "decode",
    "version",
    "latestShared",
    "resources",
    "quantity",
    "readMetrics",
    "extractVmInfo",
)
Vector = dict[str, Any]

# Ours know the later published versions, so that their texts are no "<unknown = v1.1 + n>".
LATER_PLUGIN_TEXTS = {3: "v2.0", 4: "v2.1", 5: "v3.0", 6: "v4.0", 7: "v5.0"}
LATER_INFORMANT_TEXTS = {3: "v1.2", 4: "v2.0", 5: "<unknown = v2.0 + 1>", 6: "<unknown = v2.0 + 2>"}
LATER_INFORMANT_TEXTS[7] = "<unknown = v2.0 + 3>"

# (page, prefix) → what ours answers instead: metrics as (1 min, 5 min), or None for a refusal.
READ_METRICS_EXCEPTIONS: dict[tuple[str, str], tuple[float, float] | None] = {
    # Blanks inside label values do not split the value.
    ('node_load1{a="b"} 0.5\nnode_load5{a="b c"} 0.25\n', "node_"): (0.5, 0.25),
    # NaN and infinities are refused: they could not be sent.
    ("node_load1 NaN\nnode_load5 +Inf\n", "node_"): None,
    # Whole names: Go takes the first line with that beginning.
    ("node_load1foo 8\nnode_load1 0.5\nnode_load5 1\n", "node_"): (0.5, 1.0),
    # Hexadecimal and digit separators are no numbers of the text format.
    ("node_load1 0x1p-2\nnode_load5 1_0\n", "node_"): None,
}

TYPES: dict[str, Any] = {
    "AgentMessage[RawResources]": wire.AgentMessage[wire.RawResources],
    "AgentMessage[AgentIdentification]": wire.AgentMessage[wire.AgentIdentification],
    "AgentMessage[struct{}]": wire.AgentMessage[wire.Empty],
    "VmInfo": vminfo.VmInfo,
}


def _type(name: str) -> Any:
    return TYPES.get(name) or getattr(wire, name)


def _as_float32(content: Any) -> Any:
    """The numbers of `metrics` as float32; every other value as it is."""
    if isinstance(content, dict) and isinstance(content.get("metrics"), dict):
        loads = {name: float32.round32(float(load)) for name, load in content["metrics"].items()}
        return {**content, "metrics": loads}
    return content


def _json(message: wire.Message) -> Any:
    return json.loads(codec.encode(message))


def _resources(pair: dict[str, int]) -> wire.SlotResources:
    return wire.SlotResources(pair["vCPUs"], pair["mem"])


def _check_encode(vector: Vector) -> list[str]:
    read = codec.decode(_type(vector["type"]), vector["json"].encode())
    wanted = _as_float32(json.loads(vector["json"]))
    again = codec.decode(_type(vector["type"]), codec.encode(read))
    return _differences(json=(_as_float32(_json(read)), wanted), again=(again, read))


def _check_decode(vector: Vector) -> list[str]:
    try:
        read = codec.decode(_type(vector["type"]), vector["input"].encode())
    except RemoteProtocolError as error:
        return _differences(ok=(False, vector["ok"]), named=(len(error.faults) > 0, True))
    if not vector["ok"]:
        return ["accepted"]
    return _differences(json=(_as_float32(_json(read)), _as_float32(json.loads(vector["json"]))))


def _check_version(vector: Vector) -> list[str]:
    number = vector["number"]
    plugin, informant = PluginProtoVersion(number), InformantProtoVersion(number)
    return _differences(
        plugin=(
            {
                "text": str(plugin),
                "valid": plugin.is_valid(),
                "allowsNilMetrics": plugin.allows_nil_metrics(),
            },
            {**vector["plugin"], "text": LATER_PLUGIN_TEXTS.get(number, vector["plugin"]["text"])},
        ),
        informant=(
            {
                "text": str(informant),
                "valid": informant.is_valid(),
                "hasTryUpscale": informant.has_try_upscale(),
            },
            {**vector["informant"], "text": LATER_INFORMANT_TEXTS.get(number, vector["informant"]["text"])},
        ),
    )


def _check_latest_shared(vector: Vector) -> list[str]:
    """Both kinds of version share the rule; the vectors' texts are the plugin's or the informant's alike."""
    found = []
    kinds: tuple[Any, ...] = (PluginProtoVersion, InformantProtoVersion)
    for kind in kinds:
        ours = VersionRange(*map(kind, vector["ours"]))
        theirs = VersionRange(*map(kind, vector["theirs"]))
        shared = ours.latest_shared(theirs)
        found += _differences(
            ok=(shared is not None, vector["ok"]), version=(int(shared or 0), vector["version"])
        )
        if max(vector["ours"]) <= 2:  # later versions have names of their own with us
            found += _differences(text=(str(ours), vector["text"]))
    return found


def _check_resources(vector: Vector) -> list[str]:
    a, b, factor = _resources(vector["a"]), _resources(vector["b"]), vector["factor"]
    increase = a.increase_from(b)
    try:
        a.validate_non_zero()
        non_zero = True
    except ValueError:
        non_zero = False
    if max(a.vcpu, a.mem) * factor <= 65535:
        product: Any = _json(a.mul(factor))
        wanted_product: Any = vector["mul"]
    else:  # Go wraps here, ours raises (README, op "resources")
        wrapped = {"vCPUs": a.vcpu * factor % 65536, "mem": a.mem * factor % 65536}
        product, wanted_product = (_raises(lambda: a.mul(factor)), wrapped), (True, vector["mul"])
    return _differences(
        min=(_json(a.min(b)), vector["min"]),
        max=(_json(a.max(b)), vector["max"]),
        mul=(product, wanted_product),
        increaseFrom=(_json(increase), vector["increaseFrom"]),
        greater=(a.has_field_greater_than(b), vector["greater"]),
        less=(a.has_field_less_than(b), vector["less"]),
        nonZero=(non_zero, vector["nonZero"]),
        not_=(_json(increase.not_()), vector["not"]),
        and_=(_json(increase.and_(b.increase_from(a))), vector["and"]),
        raw=(_json(a.convert_to_raw(quantities.parse(vector["slotSize"]))), vector["raw"]),
    )


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


def _check_quantity(vector: Vector) -> list[str]:
    try:
        quantity = quantities.parse(vector["input"])
    except quantities.QuantityError:
        return _differences(ok=(False, vector["ok"]))
    if not vector["ok"]:
        return ["accepted"]
    written = quantities.parse(vector["written"])
    found = _differences(
        canonical=(quantity.canonical(), vector["canonical"]),
        written=(written, quantity),
        rewritten=(written.canonical(), vector["canonical"]),
        read_again=(quantities.parse(quantity.canonical()), quantity),
    )
    # Left out of the vectors beyond int64, where Go wraps and ours are exact.
    for name, ours in (("value", quantity.value()), ("milliValue", quantity.milli_value())):
        fits = abs(ours) < 2**63 - 1
        if name in vector or fits:
            found += _differences(**{name: (str(ours), vector.get(name))})
    return found


def _check_read_metrics(vector: Vector) -> list[str]:
    key = (vector["page"], vector["prefix"])
    wanted: Any = (
        tuple(vector["metrics"][name] for name in ("loadAvg1M", "loadAvg5M")) if vector["ok"] else None
    )
    wanted = READ_METRICS_EXCEPTIONS.get(key, wanted)
    try:
        read = exporter.read_metrics(vector["page"].encode(), vector["prefix"])
    except RemoteProtocolError as error:
        return _differences(metrics=(None, wanted), named=(len(error.faults) > 0, True))
    if wanted is None:
        return [f"accepted as {read}"]
    loads = (read.load_average_1min, read.load_average_5min)
    return _differences(metrics=(loads, tuple(map(float32.round32, wanted))))


def _check_vm_info(vector: Vector) -> list[str]:
    try:
        info = vminfo.extract_vm_info(json.loads(vector["object"]))
    except RemoteProtocolError as error:
        named = any(fault.path.startswith(".spec.guest") for fault in error.faults)
        return _differences(ok=(False, vector["ok"]), named=(named, True))
    if not vector["ok"]:
        return ["accepted"]
    return _differences(
        json=(_json(info), json.loads(vector["json"])),
        using=(_json(info.using()), vector["using"]),
        min=(_json(info.min()), vector["min"]),
        max=(_json(info.max()), vector["max"]),
        set_using=(info.with_using(info.max()).using(), info.max()),
    )


def _differences(**pairs: tuple[object, object]) -> list[str]:
    return [
        f"{name}: ours {ours!r}, published {wanted!r}"
        for name, (ours, wanted) in pairs.items()
        if ours != wanted
    ]


CHECKS: dict[str, Callable[[Vector], list[str]]] = {
    "encode": _check_encode,
    "decode": _check_decode,
    "version": _check_version,
    "latestShared": _check_latest_shared,
    "resources": _check_resources,
    "quantity": _check_quantity,
    "readMetrics": _check_read_metrics,
    "extractVmInfo": _check_vm_info,
}


@pytest.fixture(scope="module")
def vectors() -> list[Vector]:
    if not VECTORS.exists():
        pytest.skip(
            f"no published vectors: put neon-api-v0.1.13.jsonl into {VECTORS.parent} to run these tests"
        )
    return [json.loads(line) for line in VECTORS.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("op", OPS)
def test_ours_does_what_the_published_package_does(op: str, vectors: list[Vector]) -> None:
    mine = [vector for vector in vectors if vector["op"] == op]
    assert mine, f"no vectors of {op}"
    failures = []
    for vector in mine:
        try:
            found = CHECKS[op](vector)
        except Exception as error:  # noqa: BLE001 - any exception is a failure of this vector, the rest still run
            found = [f"raised {error!r}"]
        failures += [f"{json.dumps(vector)[:300]}\n    {line}" for line in found]
    assert not failures, f"{len(failures)} differences, the first 10:\n" + "\n".join(failures[:10])


def test_every_line_is_run_once(vectors: list[Vector]) -> None:
    lines = len([line for line in VECTORS.read_text("utf-8").splitlines() if line.strip()])
    assert set(OPS) == set(CHECKS)
    assert sum(vector["op"] in CHECKS for vector in vectors) == lines


def test_every_granted_exception_is_used(vectors: list[Vector]) -> None:
    """An exception that no vector needs any more, or never did, hides nothing here."""
    pages = {
        (vector["page"], vector["prefix"]): vector for vector in vectors if vector["op"] == "readMetrics"
    }
    for key, ours in READ_METRICS_EXCEPTIONS.items():
        published = pages[key].get("metrics")
        published_pair = published and (published["loadAvg1M"], published["loadAvg5M"])
        assert published_pair != ours
        assert ours is None or all(math.isfinite(load) for load in ours)
    texts = {vector["number"]: vector for vector in vectors if vector["op"] == "version"}
    assert all(texts[number]["plugin"]["text"] != text for number, text in LATER_PLUGIN_TEXTS.items())
    assert all(texts[number]["informant"]["text"] != text for number, text in LATER_INFORMANT_TEXTS.items())
