"""Every name on the published API page (seed 004) beside ours: nothing of the page is missing, and all of ours exist."""

import importlib
import re
from pathlib import Path

import pytest

SEED = Path(__file__).resolve().parents[3] / "shared" / "seeds" / "004-neon-autoscaling-api-v0.1.13.txt"

NAMES = {
    "LabelTestingOnlyAlwaysMigrate": "protocol.vminfo.LABEL_TESTING_ONLY_ALWAYS_MIGRATE",
    "AgentDesc": "protocol.wire.AgentDesc",
    "AgentDesc.ProtocolRange": "protocol.wire.AgentDesc.protocol_range",
    "AgentIdentification": "protocol.wire.AgentIdentification",
    "AgentIdentificationMessage": "protocol.wire.AgentIdentificationMessage",
    "AgentMessage": "protocol.wire.AgentMessage",
    "AgentRequest": "protocol.wire.AgentRequest",
    "AgentRequest.ProtocolRange": "protocol.wire.AgentRequest.protocol_range",
    "DownscaleResult": "protocol.wire.DownscaleResult",
    "InformantDesc": "protocol.wire.InformantDesc",
    "InformantMetricsMethod": "protocol.wire.InformantMetricsMethod",
    "InformantProtoVersion": "protocol.versions.InformantProtoVersion",
    "InformantProtoV1_0": "protocol.versions.InformantProtoVersion.V1_0",
    "InformantProtoV1_1": "protocol.versions.InformantProtoVersion.V1_1",
    "InformantProtoVersion.HasTryUpscale": "protocol.versions.InformantProtoVersion.has_try_upscale",
    "InformantProtoVersion.IsValid": "protocol.versions.InformantProtoVersion.is_valid",
    "InformantProtoVersion.String": "protocol.versions.InformantProtoVersion.__str__",
    "Metrics": "protocol.wire.Metrics",
    "ReadMetrics": "protocol.exporter.read_metrics",
    "MetricsMethodPrometheus": "protocol.wire.MetricsMethodPrometheus",
    "MigrateResponse": "protocol.wire.MigrateResponse",
    "MoreResources": "protocol.wire.MoreResources",
    "MoreResources.And": "protocol.wire.MoreResources.and_",
    "MoreResources.Not": "protocol.wire.MoreResources.not_",
    "MoreResourcesRequest": "protocol.wire.MoreResourcesRequest",
    "PluginProtoVersion": "protocol.versions.PluginProtoVersion",
    "PluginProtoV1_0": "protocol.versions.PluginProtoVersion.V1_0",
    "PluginProtoV1_1": "protocol.versions.PluginProtoVersion.V1_1",
    "PluginProtoVersion.AllowsNilMetrics": "protocol.versions.PluginProtoVersion.allows_nil_metrics",
    "PluginProtoVersion.IsValid": "protocol.versions.PluginProtoVersion.is_valid",
    "PluginProtoVersion.String": "protocol.versions.PluginProtoVersion.__str__",
    "PluginResponse": "protocol.wire.PluginResponse",
    "PodName": "protocol.wire.PodName",
    "PodName.String": "protocol.wire.PodName.__str__",
    "RawResources": "protocol.wire.RawResources",
    "Resources": "protocol.wire.SlotResources",
    "Resources.ConvertToRaw": "protocol.wire.SlotResources.convert_to_raw",
    "Resources.HasFieldGreaterThan": "protocol.wire.SlotResources.has_field_greater_than",
    "Resources.HasFieldLessThan": "protocol.wire.SlotResources.has_field_less_than",
    "Resources.IncreaseFrom": "protocol.wire.SlotResources.increase_from",
    "Resources.Max": "protocol.wire.SlotResources.max",
    "Resources.Min": "protocol.wire.SlotResources.min",
    "Resources.Mul": "protocol.wire.SlotResources.mul",
    "Resources.ValidateNonZero": "protocol.wire.SlotResources.validate_non_zero",
    "ResumeAgent": "protocol.wire.ResumeAgent",
    "SuspendAgent": "protocol.wire.SuspendAgent",
    "UnregisterAgent": "protocol.wire.UnregisterAgent",
    "VersionRange": "protocol.versions.VersionRange",
    "VersionRange.LatestSharedVersion": "protocol.versions.VersionRange.latest_shared",
    "VersionRange.String": "protocol.versions.VersionRange.__str__",
    "VmCpuInfo": "protocol.vminfo.VmCpuInfo",
    "VmInfo": "protocol.vminfo.VmInfo",
    "ExtractVmInfo": "protocol.vminfo.extract_vm_info",
    "VmInfo.Max": "protocol.vminfo.VmInfo.max",
    "VmInfo.Min": "protocol.vminfo.VmInfo.min",
    "VmInfo.SetUsing": "protocol.vminfo.VmInfo.with_using",
    "VmInfo.Using": "protocol.vminfo.VmInfo.using",
    "VmMemInfo": "protocol.vminfo.VmMemInfo",
}

_TYPE = re.compile(r"^type (\w+)", re.MULTILINE)
_FUNC = re.compile(r"^func (?:\((?:\w+ )?\*?(\w+)(?:\[\w+\])?\) )?(\w+)", re.MULTILINE)
_CONST = re.compile(r"^(?:const |\t)(Label\w+|\w+ProtoV\d_\d)\b", re.MULTILINE)


@pytest.mark.parametrize(("published", "ours"), NAMES.items())
def test_our_name_of_a_published_one_exists(published: str, ours: str) -> None:
    package, module, *attributes = ours.split(".")
    found: object = importlib.import_module(f"{package}.{module}")
    for attribute in attributes:
        assert hasattr(found, attribute), f"{published}: {found} has no {attribute}"
        found = getattr(found, attribute)
    # A text method must be ours: every object inherits one.
    assert attributes[-1] != "__str__" or found is not object.__str__


def test_no_name_of_the_page_is_missing_from_the_table() -> None:
    if not SEED.exists():
        pytest.skip(f"no API page: put it at {SEED} to compare the table with it")
    page = SEED.read_text("utf-8")
    on_page = set(_TYPE.findall(page)) | set(_CONST.findall(page))
    on_page |= {f"{owner}.{name}" if owner else name for owner, name in _FUNC.findall(page)}
    assert on_page == set(NAMES)
