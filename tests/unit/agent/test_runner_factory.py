"""The runner of a VM gets the source's description, changed by the annotations of the VM's object."""

from dataclasses import fields
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core.model import VmKind
from agent.core.ports import VmDescription
from agent.daemon import policies
from agent.daemon.runner_factory import RunnerFactory
from agent.daemon.settings import AgentSettings
from hosting.kubernetes.names import NEON_BOUNDS
from hosting.settings import check
from protocol.values import Bounds
from tests.support.amounts import cu
from tests.unit.agent.driver import VM

SETTINGS = {"node": "node-a", "stateDirectory": "/tmp", "scheduler": "http://127.0.0.1:1"}
PUBLISHED = {NEON_BOUNDS: '{"min": {"cpu": 2, "mem": "2Gi"}, "max": {"cpu": 4, "mem": "4Gi"}}'}


@pytest.mark.parametrize(
    ("kind", "bounds", "is_apart"),
    [(VmKind.NEONVM, Bounds(cu(2), cu(4)), False), (VmKind.POD, VM.bounds, True)],
)
def test_published_annotations_count_for_neonvms_alone(kind: VmKind, bounds: Bounds, is_apart: bool) -> None:
    others: dict[str, Any] = {field.name: None for field in fields(RunnerFactory)}
    known = {"settings": check(SETTINGS, AgentSettings), "registry": policies.standard(())}
    factory = RunnerFactory(**{**others, **known})
    found = factory.vm(VmDescription(replace(VM, kind=kind), "http://127.0.0.1:1", PUBLISHED))
    assert (found.bounds, found.unit.is_apart) == (bounds, is_apart)
