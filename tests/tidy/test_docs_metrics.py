"""docs/operations.md lists exactly the metrics that the programs serve."""

import re

from tests.support.reference.metrics import every_family, shown
from tests.tidy.repository import ROOT


def test_the_documented_metrics_are_those_that_are_served() -> None:
    """In both directions, with their labels."""
    served = [family for family in every_family() if family.name.startswith("parley_")]
    documented = dict(
        re.findall(r"^\| `(parley_\w+)` \|([^|]*)\|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    )
    assert {shown(family) for family in served} == set(documented)
    for family in served:
        assert re.findall(r"`(\w+)`", documented[shown(family)]) == list(family.labels)
