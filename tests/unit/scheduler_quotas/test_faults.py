"""Each rule of the published webhook, as a fault of the objects as they are."""

from typing import Any

import pytest

from scheduler.quotas.faults import quota_faults
from scheduler.quotas.values import QuotaSpec


def spec(name: str, least: int = 0, most: int = 10, **more: Any) -> QuotaSpec:
    return QuotaSpec(name, **({"min": {"cpu": least}, "max": {"cpu": most}, "namespace": "n"} | more))


ORG = spec("org", 5, is_parent=True)


@pytest.mark.parametrize(
    ("specs", "faulty", "reasons"),
    [
        ([ORG, spec("a", 5, parent="org")], "a", ()),
        ([spec("a", -1)], "a", ("NegativeAmount",)),
        ([spec("a", weight={"cpu": -1})], "a", ("NegativeAmount",)),
        ([spec("a", min={"gpu": 1})], "a", ("MinWithoutMax",)),
        ([spec("a", 11)], "a", ("MinAboveMax",)),
        ([spec("used", 0, 5, strict_check=("cpu",))], "used", ("MaxBelowUsed",)),
        ([spec("used", 0, 5)], "used", ()),
        ([spec("a", parent="nobody")], "a", ("NoParent",)),
        ([spec("b", is_parent=False), spec("a", parent="b")], "a", ("ParentIsLeaf",)),
        ([spec("b", is_parent=False), spec("a", parent="b")], "b", ("HasChildren",)),
        ([ORG, spec("a", parent="org", tree_id="t")], "a", ("OtherTree",)),
        ([ORG, spec("a", parent="org", max={"cpu": 1, "gpu": 1})], "a", ("MaxKeysDiffer",)),
        (
            [spec("b", min={}, is_parent=True), spec("a", 0, parent="b")],
            "a",
            ("MinKeysDiffer",),
        ),
        ([ORG, spec("a", 3, parent="org"), spec("b", 3, parent="org")], "org", ("ChildrenMinAboveMin",)),
        ([spec("used", is_parent=True)], "used", ("ParentHasPods",)),
        ([spec("a", namespaces=("x",)), spec("b", namespaces=("x", "y"))], "b", ("NamespaceTaken",)),
        (
            [spec("a", parent="b", is_parent=True), spec("b", parent="a", is_parent=True)],
            "a",
            ("ParentCircle",),
        ),
    ],
)
def test_the_rules(specs: list[QuotaSpec], faulty: str, reasons: tuple[str, ...]) -> None:
    found = quota_faults(specs, {"used": {"cpu": 6}}, {"used"})
    assert tuple(fault.reason for fault in found.get(("n", faulty), ())) == reasons


def test_of_two_quotas_of_one_name_the_first_counts() -> None:
    found = quota_faults([spec("a"), spec("a", namespace="m")], {}, frozenset())
    assert {key: [fault.text for fault in faults] for key, faults in found.items()} == {
        ("m", "a"): ["the quota of that name in namespace n counts"]
    }
