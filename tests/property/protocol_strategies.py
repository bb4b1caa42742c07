"""Hypothesis strategies for every message type, shared by the laws and the fuzz tests."""

from typing import Any

from hypothesis import strategies as st

from protocol import extension, quantities, values, vminfo, wire
from protocol.quantities import Format, Quantity
from protocol.reasons import Reason, ReasonCode
from protocol.versions import InformantProtoVersion, PluginProtoVersion

# Unpaired surrogates cannot be written as UTF-8; everything else travels.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
uuids = st.uuids(allow_nil=True)


def uint(bits: int, low: int = 0) -> st.SearchStrategy[int]:
    """Any unsigned number of `bits`, its ends often."""
    high = 2**bits - 1
    return st.one_of(st.sampled_from([low, low + 1, high - 1, high]), st.integers(low, high))


float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
plugin_versions = uint(32).map(PluginProtoVersion)
informant_versions = uint(32).map(InformantProtoVersion)

_DECIMAL_TEXT = st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E)?", fullmatch=True)
_BINARY_TEXT = st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,12})?(Ki|Mi|Gi|Ti|Pi|Ei)", fullmatch=True)
_EXPONENT_TEXT = st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,12})?[eE][+-]?[0-9]{1,2}", fullmatch=True)
quantity_texts = st.one_of(_DECIMAL_TEXT, _BINARY_TEXT, _EXPONENT_TEXT)
read_quantities = quantity_texts.map(quantities.parse)
"""Quantities as they can be read, so that writing and reading them again is lossless."""
any_quantities = st.builds(Quantity, st.integers(-(10**40), 10**40), st.sampled_from(Format))

amounts = st.builds(
    values.Resources,
    st.integers(0, values.MAX_VCPU_MILLI),
    st.one_of(uint(63), st.integers(0, 2**33).map(lambda mib: mib * 2**20)),
)
signed_amounts = st.builds(values.Resources, st.integers(-(2**64), 2**64), st.integers(-(2**70), 2**70))
positive_amounts = st.builds(values.Resources, st.integers(1, 10**6), st.integers(1, 2**45))

pod_names = st.builds(wire.PodName, text, text)
wire_resources = st.builds(wire.SlotResources, uint(16), uint(16))
metrics = st.builds(wire.Metrics, float32s, float32s)
raw_resources = st.builds(wire.RawResources, st.none() | read_quantities, st.none() | read_quantities)
agent_requests = st.builds(wire.AgentRequest, plugin_versions, pod_names, wire_resources, st.none() | metrics)
migrations = st.none() | st.builds(wire.MigrateResponse)
plugin_responses = st.builds(wire.PluginResponse, wire_resources, wire_resources, migrate=migrations)
methods = st.builds(
    wire.InformantMetricsMethod, st.none() | st.builds(wire.MetricsMethodPrometheus, uint(16))
)
more_resources = st.builds(wire.MoreResources, st.booleans(), st.booleans())

vm_cpus = st.builds(vminfo.VmCpuInfo, uint(16), uint(16), uint(16))
vm_mems = st.builds(vminfo.VmMemInfo, uint(16), uint(16), uint(16), read_quantities)
vm_infos = st.builds(vminfo.VmInfo, text, text, vm_cpus, vm_mems, st.booleans())

raw_requests = st.builds(
    extension.RawRequest, amounts, st.none() | amounts, st.none() | amounts, st.none() | st.booleans()
)
request_extensions = st.builds(
    extension.RequestExtension,
    uuids,
    uint(64),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64),
    uint(64, low=1),
    uint(64),
    st.none() | uuids,
    raw_requests,
)
extended_requests = st.builds(
    wire.AgentRequest, plugin_versions, pod_names, wire_resources, st.none() | metrics, request_extensions
)
# OTHER stands for a code that this program does not know: read as such, never sent.
reason_codes = st.sampled_from([code for code in ReasonCode if code is not ReasonCode.OTHER])
retry_afters = st.none() | st.floats(0, 1e300, allow_nan=False, allow_infinity=False)
reasons = st.builds(Reason, reason_codes, text, st.none() | text, retry_afters)
reply_extensions = st.builds(
    extension.ReplyExtension,
    uint(64, low=1),
    uuids,
    uint(64),
    st.builds(extension.RawReply, amounts, st.builds(values.ComputeUnit, amounts, st.booleans())),
    st.lists(reasons, max_size=4).map(tuple),
)
extended_responses = st.builds(
    wire.PluginResponse, wire_resources, wire_resources, migrations, reply_extensions
)


def agent_messages(data: st.SearchStrategy[Any]) -> st.SearchStrategy[wire.AgentMessage[Any]]:
    """Messages around `data`."""
    return st.builds(wire.AgentMessage, data, uint(64))


Kind = tuple[Any, st.SearchStrategy[Any]]

KINDS: dict[str, Kind] = {
    "PodName": (wire.PodName, pod_names),
    "Resources": (wire.SlotResources, wire_resources),
    "MoreResources": (wire.MoreResources, more_resources),
    "RawResources": (wire.RawResources, raw_resources),
    "Metrics": (wire.Metrics, metrics),
    "AgentRequest": (wire.AgentRequest, agent_requests),
    "PluginResponse": (wire.PluginResponse, plugin_responses),
    "MigrateResponse": (wire.MigrateResponse, st.builds(wire.MigrateResponse)),
    "AgentDesc": (
        wire.AgentDesc,
        st.builds(wire.AgentDesc, uuids, text, informant_versions, informant_versions),
    ),
    "AgentIdentification": (wire.AgentIdentification, st.builds(wire.AgentIdentification, uuids)),
    "AgentMessage of an identification": (
        wire.AgentMessage[wire.AgentIdentification],
        agent_messages(st.builds(wire.AgentIdentification, uuids)),
    ),
    "AgentMessage of amounts": (wire.AgentMessage[wire.RawResources], agent_messages(raw_resources)),
    "AgentMessage of nothing": (wire.AgentMessage[wire.Empty], agent_messages(st.builds(wire.Empty))),
    "MetricsMethodPrometheus": (
        wire.MetricsMethodPrometheus,
        st.builds(wire.MetricsMethodPrometheus, uint(16)),
    ),
    "InformantMetricsMethod": (wire.InformantMetricsMethod, methods),
    "InformantDesc": (wire.InformantDesc, st.builds(wire.InformantDesc, informant_versions, methods)),
    "DownscaleResult": (wire.DownscaleResult, st.builds(wire.DownscaleResult, st.booleans(), text)),
    "MoreResourcesRequest": (
        wire.MoreResourcesRequest,
        st.builds(wire.MoreResourcesRequest, st.booleans(), st.booleans(), uuids),
    ),
    "ResumeAgent": (wire.ResumeAgent, st.builds(wire.ResumeAgent, uuids)),
    "SuspendAgent": (wire.SuspendAgent, st.builds(wire.SuspendAgent, uuids)),
    "UnregisterAgent": (wire.UnregisterAgent, st.builds(wire.UnregisterAgent, st.booleans())),
    "Empty": (wire.Empty, st.builds(wire.Empty)),
    "VmCpuInfo": (vminfo.VmCpuInfo, vm_cpus),
    "VmMemInfo": (vminfo.VmMemInfo, vm_mems),
    "VmInfo": (vminfo.VmInfo, vm_infos),
    "AgentRequest with the extension": (wire.AgentRequest, extended_requests),
    "PluginResponse with the extension": (wire.PluginResponse, extended_responses),
}
"""Name → (type to decode as, values of it)."""
