"""docs/guides/informant.md and the examples of settings against the program."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from hosting import logs
from hosting.cgroups.tree import CgroupTree
from hosting.client import HttpClient
from hosting.settings import Settings, load
from hosting.signed_link import OF_INFORMANT, SignedLink
from informant.guest.machine import MachineFiles, ProcSource
from informant.guest.watching import PollingSource
from informant.node import NodeInformant
from informant.service.informant import Informant
from informant.service.limits import Guest
from informant.settings import CommonSettings, InformantSettings, NodeSettings
from protocol.values import Resources
from tests.tidy.repository import ROOT

NAME = re.compile(r"(parley_informant_\w+)(?:\{([^}]*)\})?")


async def test_the_documented_metrics_are_those_that_are_served() -> None:
    """In both directions, with their labels."""
    page = (ROOT / "docs" / "guides" / "informant.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `parley_")]
    documented = {
        name: tuple(filter(None, labels.split(","))) for row in rows for name, labels in NAME.findall(row)
    }
    sources = (PollingSource(ROOT / "README.md"),)
    guest = Guest(ProcSource(), sources=sources, machine=MachineFiles())
    log = logs.logger("test")
    signed = SignedLink(ROOT / "no-secret", OF_INFORMANT)
    informant = Informant(guest, InformantSettings(), HttpClient(), log, random.Random(1), signed)
    guard, _ = informant.limits.state.guard.grown(Resources(1000, 2**30))
    informant.limits.state = replace(informant.limits.state, guard=guard)
    node = NodeInformant(CgroupTree(ROOT), 0, NodeSettings(), HttpClient(), log)
    served = {}
    for key in (*informant.figures(), *node.figures()):
        found = NAME.fullmatch(key)
        assert found is not None, key
        served[found[1]] = tuple(re.findall(r'(\w+)="', found[2] or ""))
    assert served == documented


@pytest.mark.parametrize(
    ("name", "default", "beside"),
    [
        ("informant.yaml", InformantSettings(), {"cgroup": None}),
        ("node-informant.yaml", NodeSettings(), {}),
    ],
)
def test_the_example_has_every_setting_with_its_default(
    name: str, default: CommonSettings, beside: dict[str, Any]
) -> None:
    path = ROOT / "examples" / name
    assert load(path, type(default)).model_copy(update=beside) == default
    text = path.read_text()
    parts = (type(part) for _, part in default if isinstance(part, Settings))
    models: list[type[Settings]] = [type(default), *parts]
    for model in models:
        for field in model.model_fields.values():
            assert field.alias is not None
            assert re.search(rf"\b{field.alias}:", text), field.alias
