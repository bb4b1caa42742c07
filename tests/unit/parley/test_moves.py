"""How a VM grew and shrank, from the sizes in the change log."""

from parley.observer import SizeChange, moves
from protocol.values import ZERO, Resources
from tests.support.amounts import cu


def changes(*sizes: Resources, vm: str = "d/a") -> list[SizeChange]:
    return [SizeChange(float(at_s), vm, size) for at_s, size in enumerate(sizes)]


def test_each_resource_is_counted_by_itself() -> None:
    found = moves(changes(cu(1), cu(2, 1), cu(3, 2), cu(3, 1), cu(1)))
    assert found == {
        "d/a": {
            "cpu": {"least": 1, "most": 3, "last": 1, "up": 2, "down": 1},
            "memory_gib": {"least": 1, "most": 2, "last": 1, "up": 1, "down": 1},
        }
    }


def test_a_vm_that_is_gone_and_comes_back_has_neither_shrunk_nor_grown() -> None:
    found = moves(changes(cu(3), ZERO, cu(1), cu(2)))
    assert found["d/a"]["cpu"] == {"least": 1, "most": 3, "last": 2, "up": 1, "down": 0}
    assert moves(changes(ZERO))["d/a"] == {"cpu": None, "memory_gib": None}


def test_vms_do_not_mix() -> None:
    found = moves(changes(cu(1)) + changes(cu(2), vm="d/b") + changes(cu(1)))
    assert [found[name]["cpu"]["up"] for name in ("d/a", "d/b")] == [0, 0]
