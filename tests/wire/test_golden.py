"""Our own golden files: every message of seed 004, the extension and error bodies, byte by byte and in both directions.

The files were written by hand from the API page (seed 004) and reference/neon.md section 1.3.
"""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from protocol import codec, extension, float32, values, vminfo, wire
from protocol.errors import RemoteProtocolError
from protocol.quantities import parse
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.versions import PLUGIN_SPOKEN
from protocol.versions import InformantProtoVersion as Informant
from protocol.versions import PluginProtoVersion as Plugin
from tests.support.codes import PAGE_CODES

GOLDEN = Path(__file__).parent / "golden"
AGENT = UUID("6f1d3c9a-52b7-4e80-8d1f-0a9b7c6e5d43")
SCHEDULER = UUID("11111111-2222-3333-4444-555555555555")
GENERIC: dict[str, Any] = {
    "AgentMessage[RawResources]": wire.AgentMessage[wire.RawResources],
    "AgentMessage[Empty]": wire.AgentMessage[wire.Empty],
    "Resources": wire.SlotResources,
}

POD = wire.PodName("vm-a", "default")
LOAD = wire.Metrics(0.5, 0.25)
PROMETHEUS = wire.MetricsMethodPrometheus
PERMIT, UNIT = wire.SlotResources(3, 12), wire.SlotResources(1, 4)
CPU, MEM = vminfo.VmCpuInfo(1, 8, 2), vminfo.VmMemInfo(2, 32, 8, parse("512Mi"))
GIB = 2**30
AMOUNT, SMALL = values.Resources(1250, 4608 * 2**20), values.Resources(250, GIB)

BUILT: dict[str, wire.Message] = {
    "pod name": wire.PodName("compute-7", "tenants"),
    "resources": wire.SlotResources(2, 8),
    "resources at their limits": wire.SlotResources(0, 65535),
    "metrics": wire.Metrics(float32.round32(0.1), 12.75),
    "metrics, smallest and largest float32": wire.Metrics(2.0**-149, 2.0**128 - 2.0**104),
    "request of plugin v1.0": wire.AgentRequest(Plugin.V1_0, POD, UNIT, LOAD),
    "request of plugin v1.1": wire.AgentRequest(Plugin.V1_1, POD, UNIT, LOAD),
    "request of plugin v1.1 without metrics": wire.AgentRequest(Plugin.V1_1, POD, UNIT, None),
    "request of a version unknown to us": wire.AgentRequest(
        Plugin(2**32 - 1), wire.PodName("", ""), wire.SlotResources(0, 0), None
    ),
    "reply without migration": wire.PluginResponse(PERMIT, UNIT),
    "reply with migration": wire.PluginResponse(PERMIT, UNIT, migrate=wire.MigrateResponse()),
    "migration": wire.MigrateResponse(),
    "agent of informant v1.0 only": wire.AgentDesc(AGENT, "10.4.0.17:40123", Informant.V1_0, Informant.V1_0),
    "agent of informant v1.0 to v1.1": wire.AgentDesc(
        AGENT, "10.4.0.17:40123/vm-a", Informant.V1_0, Informant.V1_1
    ),
    "informant of v1.0": wire.InformantDesc(Informant.V1_0, wire.InformantMetricsMethod(PROMETHEUS(9100))),
    "informant of v1.1": wire.InformantDesc(Informant.V1_1, wire.InformantMetricsMethod(PROMETHEUS(65535))),
    "informant without a metrics method": wire.InformantDesc(
        Informant.V1_1, wire.InformantMetricsMethod(None)
    ),
    "metrics method": wire.InformantMetricsMethod(PROMETHEUS(9100)),
    "prometheus port": PROMETHEUS(9100),
    "identification": wire.AgentIdentification(AGENT),
    "identification message": wire.AgentMessage(wire.AgentIdentification(AGENT), 1),
    "message with amounts and the highest number": wire.AgentMessage(
        wire.RawResources(parse("2"), parse("1536Mi")), 2**64 - 1
    ),
    "message without content": wire.AgentMessage(wire.Empty(), 7),
    "raw resources": wire.RawResources(parse("250m"), parse("4Gi")),
    "raw resources without amounts": wire.RawResources(None, None),
    "approved downscale": wire.DownscaleResult(True, "memory.high set"),
    "refused downscale": wire.DownscaleResult(False, 'zu wenig Speicher: 3 MiB frei – später "wieder"'),
    "more resources": wire.MoreResources(True, False),
    "more memory wanted": wire.MoreResourcesRequest(False, True, AGENT),
    "resume": wire.ResumeAgent(AGENT),
    "suspend": wire.SuspendAgent(wire.NIL_UUID),
    "unregister of the active agent": wire.UnregisterAgent(True),
    "unregister of another agent": wire.UnregisterAgent(False),
    "empty": wire.Empty(),
    "vm cpu": CPU,
    "vm memory": MEM,
    "vm": vminfo.VmInfo("vm-a", "default", CPU, MEM, True),
}

EXTENDED: dict[str, wire.Message] = {
    "first request of a life": wire.AgentRequest(
        Plugin.V1_1,
        POD,
        wire.SlotResources(2, 5),
        None,
        extension.RequestExtension(
            AGENT, 1763719200000, "0d9c", 1, 0, None, extension.RawRequest(AMOUNT, None, None)
        ),
    ),
    "request with every field set": wire.AgentRequest(
        Plugin.V1_0,
        POD,
        wire.SlotResources(2, 5),
        LOAD,
        extension.RequestExtension(
            AGENT,
            1763719200000,
            "0d9c",
            2**64 - 1,
            9,
            SCHEDULER,
            extension.RawRequest(AMOUNT, values.Resources(1000, 4 * GIB), SMALL),
        ),
    ),
    "granted in full": wire.PluginResponse(
        wire.SlotResources(1, 4),
        wire.SlotResources(0, 1),
        extension=extension.ReplyExtension(
            1, SCHEDULER, 0, extension.RawReply(AMOUNT, values.ComputeUnit(SMALL)), ()
        ),
    ),
    "migrating, with reasons of both kinds": wire.PluginResponse(
        wire.SlotResources(1, 4),
        wire.SlotResources(0, 1),
        wire.MigrateResponse(),
        extension.ReplyExtension(
            8,
            SCHEDULER,
            3,
            extension.RawReply(AMOUNT, values.ComputeUnit(SMALL)),
            (
                Reason(ReasonCode.MIGRATING, "keeps its size"),
                Reason(ReasonCode.NODE_HEADROOM, "node is full", "memory", 2.5),
                Reason(ReasonCode.POOL, "pool is full", "cpu"),
                Reason(ReasonCode.UNSETTLED, "ask again", None, 0.5),
            ),
        ),
    ),
    "request whose resources are apart": wire.AgentRequest(
        Plugin.V1_1,
        POD,
        wire.SlotResources(2, 5),
        None,
        extension.RequestExtension(
            AGENT, 1763719200000, "0d9c", 1, 0, None, extension.RawRequest(AMOUNT, None, SMALL, apart=True)
        ),
    ),
    "granted apart": wire.PluginResponse(
        wire.SlotResources(1, 4),
        wire.SlotResources(0, 1),
        extension=extension.ReplyExtension(
            1, SCHEDULER, 0, extension.RawReply(AMOUNT, values.ComputeUnit(SMALL, is_apart=True)), ()
        ),
    ),
    "request that proves its life to be alone": wire.AgentRequest(
        Plugin.V1_1,
        POD,
        wire.SlotResources(2, 5),
        None,
        extension.RequestExtension(
            AGENT, 1763719200000, "0d9c", 2, 0, SCHEDULER, extension.RawRequest(AMOUNT, AMOUNT, SMALL), "1"
        ),
    ),
    "not settled yet": wire.PluginResponse(
        wire.SlotResources(1, 4),
        wire.SlotResources(0, 1),
        extension=extension.ReplyExtension(
            1,
            SCHEDULER,
            0,
            extension.RawReply(AMOUNT, values.ComputeUnit(SMALL)),
            (Reason(ReasonCode.UNSETTLED, "ask again", None, 0.0),),
            "1",
        ),
    ),
}


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


def _type(name: str) -> Any:
    return GENERIC.get(name) or getattr(wire, name, None) or getattr(vminfo, name)


def _ids(line: dict[str, Any]) -> str:
    return str(line.get("name") or line["code"])


MESSAGES, EXTENSION = _lines("messages.jsonl"), _lines("extension.jsonl")
QUIRKS, ERRORS = _lines("quirks.jsonl"), _lines("errors.jsonl")


def test_the_published_alias_builds_a_message() -> None:
    built = wire.AgentIdentificationMessage(wire.AgentIdentification(AGENT), 1)
    assert built == BUILT["identification message"]


def test_every_golden_line_has_a_value_built_in_python() -> None:
    assert [line["name"] for line in MESSAGES] == list(BUILT)
    assert [line["name"] for line in EXTENSION] == list(EXTENDED)


@pytest.mark.parametrize("line", MESSAGES + EXTENSION, ids=_ids)
def test_a_value_is_written_as_exactly_these_bytes_and_read_from_them(line: dict[str, Any]) -> None:
    """Trailing bytes are what the strict reader refuses, so they take the other way, by the lenient one."""
    built, text = (BUILT | EXTENDED)[line["name"]], line["json"].encode()
    assert codec.encode(built) == text
    for body in (text, text + b" ]"):
        read = codec.decode(_type(line["type"]), body)
        assert (read, type(read)) == (built, type(built))


@pytest.mark.parametrize("line", QUIRKS, ids=_ids)
def test_the_lenient_reader_accepts_and_refuses_as_published(line: dict[str, Any]) -> None:
    message, body = _type(line["type"]), line["input"].encode("utf-8")
    if "json" in line:
        assert json.loads(codec.encode(codec.decode(message, body))) == json.loads(line["json"])
        return
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(message, body)
    assert {fault.path for fault in caught.value.faults} == set(line["faults"])
    assert (caught.value.status, caught.value.code) == (400, ErrorCode.MALFORMED)


def test_error_codes_are_exactly_those_of_the_status_table() -> None:
    assert [line["code"] for line in ERRORS] == [code.value for code in ErrorCode if code not in PAGE_CODES]


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        (400, {"malformed", "unsupported-version", "metrics-required", "wrong-method"}),
        (403, {"published-agent-not-allowed", "wrong-node"}),
        (404, {"unknown-pod", "wrong-pod-uid"}),
        (409, {"sequence-reused", "sequence-stale", "agent-superseded"}),
        (429, {"overloaded"}),
        (503, {"not-leader"}),
    ],
)
def test_each_status_carries_the_codes_that_the_design_states(status: int, codes: set[str]) -> None:
    """`null` in the golden file means that section 4 of the design states no status for the code."""
    assert {line["code"] for line in ERRORS if line["status"] == status} == codes
    for code in codes:
        error = RemoteProtocolError("no", status=status, code=ErrorCode(code))
        assert (error.status, error.code.value) == (status, code)


@pytest.mark.parametrize("line", ERRORS, ids=_ids)
def test_error_bodies_are_written_and_read_as_golden(line: dict[str, Any]) -> None:
    content = json.loads(line["json"])
    body = codec.ErrorBody(
        content["error"],
        ErrorCode(line["code"]),
        content.get("lastSequenceNumber"),
        content.get("currentStartedAtMs"),
        content.get("leader"),
    )
    assert json.loads(codec.encode_error(body)) == content
    read = codec.decode_error(line["json"].encode())
    assert read == codec.ReadErrorBody(body, (PLUGIN_SPOKEN.min, PLUGIN_SPOKEN.max))
