"""How long a path waits after failures, beyond what is recorded: sockets that were created anew, chance, and paths that are gone."""

import random

from agent.node.plugins.core.operations import (
    JITTER,
    LONGEST_WAIT_S,
    AlreadyExecuting,
    BackingOff,
    Operations,
)

PATH = "/p/a.sock"


def failed(operations: Operations, times: int, uuid: str = "U1", now_s: float = 0.0) -> float:
    """Let the operation of the path fail so often, each time as early as allowed. Returns the time after that."""
    for _ in range(times):
        now_s += (operations.retry_in_s(PATH, now_s) or 0.0) + 0.001
        assert operations.begin(PATH, uuid, now_s) is None
        operations.end(PATH, "no", now_s)
    return now_s


def test_a_socket_that_was_created_anew_waits_the_first_step_at_most() -> None:
    operations = Operations(random.Random(1))
    now_s = failed(operations, 9)
    assert isinstance(operations.begin(PATH, "U1", now_s + 100.0), BackingOff)
    assert isinstance(operations.begin(PATH, "U2", now_s + 0.49), BackingOff)
    assert operations.begin(PATH, "U2", now_s + 0.51) is None
    operations.end(PATH, "no", now_s + 0.51)
    again_s = operations.retry_in_s(PATH, now_s + 0.51)
    assert again_s is not None
    assert 0.5 <= again_s <= 0.5 * (1 + JITTER)


def test_chance_adds_a_tenth_at_most_and_spreads_the_waits() -> None:
    waits = set()
    for seed in range(20):
        operations = Operations(random.Random(seed))
        waits.add(operations.retry_in_s(PATH, failed(operations, 12)))
    assert len(waits) == 20
    assert all(wait and LONGEST_WAIT_S <= wait <= LONGEST_WAIT_S * (1 + JITTER) for wait in waits)


def test_a_path_that_is_gone_is_forgotten_once_its_wait_is_over() -> None:
    operations = Operations(random.Random(1))
    now_s = failed(operations, 3)
    operations.forget((), now_s + 1.0)
    assert operations.retry_in_s(PATH, now_s + 1.0) is not None
    operations.forget((PATH,), now_s + 3.0)
    assert operations.retry_in_s(PATH, now_s + 3.0) is not None
    operations.forget((), now_s + 3.0)
    assert operations.retry_in_s(PATH, now_s + 3.0) is None


def test_a_path_at_work_is_never_forgotten() -> None:
    operations = Operations(random.Random(1))
    assert operations.begin(PATH, "U1", 0.0) is None
    operations.forget((), 1000.0)
    assert operations.begin(PATH, "U2", 1000.0) == AlreadyExecuting(PATH)
