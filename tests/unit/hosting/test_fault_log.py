"""A fault that lasts is logged when it begins or changes, and when it is over."""

from hosting.fault_log import ALIKE, FaultLog
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


def test_a_thousand_objects_with_one_fault_are_some_lines_and_the_others_a_number() -> None:
    log, lines = recorded()
    faults = FaultLog(log, "not usable", "usable again")
    abouts = [f"socket {number}" for number in range(1200)]
    for about in abouts:
        faults.failed(f"nobody answers: at {about}", about, path=about)
    faults.failed("another fault", "one more", path="one more")
    assert [line.get("objects") for line in lines] == [*[None] * ALIKE, 100, 1000, None]
    assert lines[-2]["path"] == "socket 999"
    for about in abouts:
        faults.worked(about, path=about)
    over = [line["path"] for line in lines if line["event"] == "usable again"]
    assert over == [*abouts[:ALIKE], "socket 99", "socket 999"]
    faults.forget_all_but(())
    assert not faults.is_present
    faults.failed("nobody answers", "socket 1")
    assert "objects" not in lines[-1]
