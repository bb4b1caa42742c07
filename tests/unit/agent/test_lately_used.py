"""The memory of a back end is bounded, and a VM that is at work is not forgotten."""

from agent.core.ports import BoundedMemo


def test_the_vm_that_was_not_asked_for_the_longest_is_forgotten() -> None:
    known: BoundedMemo[list[str]] = BoundedMemo(list, most=3)
    known.of("lasting").append("doubtful")
    for number in range(10):
        known.of(f"job-{number}").append("short")
        assert known.of("lasting") == ["doubtful"]
    assert known.of("job-9") == ["short"]
    assert known.of("job-0") == []
