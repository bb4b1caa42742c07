"""A fault that lasts is logged when it begins or changes, and when it is over."""

from hosting.fault_log import FaultLog
from tests.unit.hosting.raw_peers import recorded


def test_a_fault_is_logged_when_it_is_new_and_when_it_is_over() -> None:
    log, lines = recorded()
    faults = FaultLog(log, "not usable", "usable again")
    faults.worked()
    for error in ("a", "a", ValueError("b"), "b"):
        faults.failed(error)
        assert faults.is_present
    faults.worked()
    faults.worked()
    assert not faults.is_present
    assert [(line["log_level"], line["event"], line.get("error")) for line in lines] == [
        ("warning", "not usable", "a"),
        ("warning", "not usable", "b"),
        ("info", "usable again", None),
    ]


def test_faults_of_several_objects_are_told_apart() -> None:
    log, lines = recorded()
    faults = FaultLog(log, "not written", "written again", is_ours=True)
    for control in ("cpu.max", "memory.max", "cpu.max"):
        faults.failed("EIO", control, control=control)
    faults.worked("cpu.max", control="cpu.max")
    faults.failed("EIO", "cpu.max", control="cpu.max")
    assert faults.is_present
    assert [(line["log_level"], line["control"]) for line in lines] == [
        ("error", "cpu.max"), ("error", "memory.max"), ("info", "cpu.max"), ("error", "cpu.max"),
    ]  # fmt: skip
