"""Our reader and that of the published stand-ins, each written without a look at the other, read any body alike.

A liberty of ours is left out here and told in docs/reference/protocol.md: a minus before a zero.
"""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import codec, wire
from protocol.errors import RemoteProtocolError
from tests.peers import gojson

ID = "00000000-0000-0000-0000-00000000000a"
SIZE = {"vCPUs": 1, "mem": 4}
KINDS: dict[str, tuple[Any, gojson.Struct, dict[str, Any]]] = {
    "AgentRequest": (
        wire.AgentRequest,
        gojson.AGENT_REQUEST,
        {
            "protoVersion": 2,
            "pod": {"name": "a", "namespace": "d"},
            "resources": SIZE,
            "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.25},
        },
    ),
    "PluginResponse": (
        wire.PluginResponse,
        gojson.PLUGIN_RESPONSE,
        {"permit": SIZE, "migrate": {}, "resourceUnit": SIZE},
    ),
    "AgentDesc": (
        wire.AgentDesc,
        gojson.AGENT_DESC,
        {"agentID": ID, "agentServeAddr": "x:1", "minProtoVersion": 1, "maxProtoVersion": 2},
    ),
    "InformantDesc": (
        wire.InformantDesc,
        gojson.INFORMANT_DESC,
        {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": 9100}}},
    ),
    "MoreResourcesRequest": (
        wire.MoreResourcesRequest,
        gojson.MORE_RESOURCES_REQUEST,
        {"cpu": True, "memory": False, "expectedID": ID},
    ),
    "SuspendAgent": (wire.SuspendAgent, gojson.EXPECTED_ID, {"expectedID": ID}),
    "DownscaleResult": (wire.DownscaleResult, gojson.DOWNSCALE_RESULT, {"Ok": True, "Status": "s"}),
    "RawResources": (wire.RawResources, gojson.RAW_RESOURCES, {"cpu": "1", "memory": "1Gi"}),
    "AgentMessage": (
        wire.AgentMessage[wire.AgentIdentification],
        gojson.AGENT_IDENTIFICATION_MESSAGE,
        {"data": {"agentID": ID}, "sequenceNumber": 1},
    ),
}
ODD = st.sampled_from(
    [
        *("null", "true", "0", "-1", "1.5", "1.0", "1e0", "1E2", "65535", "65536", "4294967296", "18446744073709551616"),
        *("1e39", "1e400", "1e-400", "3.4028235e38", "3.4028236e38", "NaN", "Infinity", "01", "+1", ".5", "1.", "0x10"),
        *('""', '"x"', "[]", "{}", "[1]", '{"a":1}', r'"\ud800"', r'"\u0000"', '"1', "'1'", ""),
        *(f'"{{{ID}}}"', f'"URN:UUID:{ID}"', f'"{ID.replace("-", "")}"', f'"{ID.upper()}"', f'"{ID}0"'),
        *('"1Gi"', '"0"', '"-1"', '" 1"', '"1 "', '"1e3"', '"1E3"', '"5e1Ki"', '"1.Gi"', '".5"', '"+1"', "1e3"),
        *('"0.1n"', '"1e100"', '"9999999999999999999Ei"', '"1K"', '"1ki"', '"1e"', '"1E"', '"0x1"'),
    ]
)  # fmt: skip
AROUND = st.sampled_from(["", "", "", " ", "\n\t", "x", "{}", " null", "]", "\ufeff", "\x0b", "\xa0"])


@st.composite
def names(draw: st.DrawFn, name: str) -> str:
    """A name as it is, in another case, with letters that Go folds, or another name."""
    others = [name.upper(), name.lower(), name.swapcase(), name + "x"]
    others += [name.lower().replace("s", "\u017f"), name.upper().replace("K", "\u212a")]
    return draw(st.sampled_from([name] * 12 + others))


@st.composite
def texts(draw: st.DrawFn, value: Any) -> str:
    """A value as JSON, or something odd in its place or within."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ODD)
    if not isinstance(value, dict):
        return json.dumps(value)
    members = []
    for name, inner in draw(st.permutations(list(value.items()))):
        if draw(st.integers(0, 9)) == 0:  # it comes twice
            members.append((draw(names(name)), draw(texts(inner))))
        if draw(st.integers(0, 19)):
            members.append((draw(names(name)), draw(texts(inner))))
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in members) + "}"


def exact(message: Any) -> Any:
    """A message with its quantities as numbers: either side keeps a spelling of its own."""
    if isinstance(message, dict) and message.keys() == {"cpu", "memory"}:
        return {
            name: None if text is None else Fraction(gojson.quantity(text)) for name, text in message.items()
        }
    return message


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_what_published_peers_read_is_read_with_the_same_value_and_all_else_is_refused(
    kind: str, data: st.DataObject
) -> None:
    ours, theirs, sample = KINDS[kind]
    body = (data.draw(AROUND) + data.draw(texts(sample)) + data.draw(AROUND)).encode("utf-8", "surrogatepass")
    try:
        read = json.loads(gojson.encode(theirs, gojson.decode(theirs, body)))
    except gojson.BadJSONError:
        with pytest.raises(RemoteProtocolError):
            codec.decode(ours, body)
        return
    assert exact(json.loads(codec.encode(codec.decode(ours, body)))) == exact(read), body
