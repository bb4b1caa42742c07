"""Which scheduler is asked: the one that leads, told by its epoch."""

from collections.abc import Callable

import pytest

from agent.daemon.kubernetes import ready_urls
from agent.peers.scheduler import Candidates
from hosting.kubernetes.resources import Manifest

A, B, C = "http://10.0.0.1:1/", "http://10.0.0.2:1/", "http://[fd00::3]:1/"

Step = Callable[[Candidates], object]


def failed(url: str, leader: str | None = None) -> Step:
    return lambda candidates: candidates.failed(url, leader)


def granted(url: str, epoch: int | None) -> Step:
    return lambda candidates: candidates.answered(url, epoch)


@pytest.mark.parametrize(
    ("steps", "then"),
    [
        ((), A),
        ((failed(A),), B),
        ((failed(A), failed(B), failed(C)), A),
        ((failed(B),), A),  # a late answer of one that is not asked any more
        ((granted(A, 7), granted(A, 7)), A),
        ((granted(A, 7), failed(A), granted(B, 6)), C),  # an old leader that came back
        ((granted(A, 7), failed(A), granted(B, 8), granted(A, 7)), B),
        ((granted(A, None), granted(A, 0)), A),  # a published scheduler, one without a lease
        ((failed(A, C),), C),
        ((failed(A, "10.9.9.9:1"),), "http://10.9.9.9:1/"),
        ((failed(A, "10.9.9.9:1"), failed("http://10.9.9.9:1/")), A),
        ((failed(A, A),), B),  # names itself
        ((failed(A, "ftp://10.9.9.9/"),), B),
        ((failed(A, "https://10.9.9.9/"),), B),  # it was found by http
        ((failed(A, "no address"),), B),
    ],
)
def test_the_next_scheduler(steps: tuple[Step, ...], then: str) -> None:
    candidates = Candidates(lambda: (A, B, C))
    assert candidates.current() == A
    for step in steps:
        step(candidates)
    assert candidates.current() == then


def test_the_list_may_change_at_any_time() -> None:
    listed: tuple[str, ...] = ()
    candidates = Candidates(lambda: listed)
    assert candidates.current() is None
    listed = (A, B)
    assert candidates.current() == A
    listed = (B, A, C)
    assert candidates.current() == A, "it answers, so it stays"
    listed = (B, C)
    assert candidates.current() == B
    listed = ()
    candidates.failed(B)
    assert candidates.current() is None


def test_every_endpoint_that_is_not_known_to_be_unready_may_be_asked() -> None:
    slices: list[Manifest] = [
        {
            "endpoints": [
                {"addresses": ["10.0.0.2"], "conditions": {"ready": True}},
                {
                    "addresses": ["10.0.0.9"],
                    "conditions": {"ready": False, "serving": True, "terminating": True},
                },
                {"addresses": ["10.0.0.1"], "conditions": {}},
            ]
        },
        {"endpoints": [{"addresses": ["fd00::3"]}, {"addresses": ["10.0.0.1"]}]},
        {"endpoints": None},
    ]
    assert ready_urls(slices, 1) == (A, B, C)
    assert ready_urls(slices, 1, "https") == tuple(each.replace("http:", "https:") for each in (A, B, C))
