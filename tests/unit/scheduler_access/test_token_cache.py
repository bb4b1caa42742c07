"""Verdicts on tokens: one review for those that come together, bounds, and the API server's answers."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from hosting.kubernetes.api import KubernetesApi, RefusedError
from scheduler.access import gate
from scheduler.access.callers import TokenIdentity
from scheduler.access.gate import ReviewError, TokenCache
from scheduler.access.token_reviewer import review
from tests.support.virtual_time import now_s, turns, virtually

AGENT = TokenIdentity("p", "agent", "n1")


@dataclass
class Reviewer:
    """Answers when it is let go on."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def review(self, token: str) -> TokenIdentity | None:
        self.asked.append(token)
        await self.go_on.wait()
        return AGENT if token.startswith("good") else None


@virtually
async def test_requests_that_come_together_have_one_review_and_survive_each_other() -> None:
    reviewer = Reviewer()
    cache = TokenCache(reviewer, now_s)
    first, *others = [asyncio.create_task(cache.verdict("good")) for _ in range(5)]
    await turns()
    first.cancel()
    reviewer.go_on.set()
    assert await asyncio.gather(*others) == [AGENT] * 4
    assert reviewer.asked == ["good"]
    assert cache.known("good") == (AGENT,)


@virtually
async def test_a_verdict_counts_from_the_moment_in_which_it_was_asked_for() -> None:
    reviewer = Reviewer()
    reviewer.go_on.set()
    cache = TokenCache(reviewer, now_s)
    assert await cache.verdict("good") == AGENT
    assert await cache.verdict("bad") is None
    await asyncio.sleep(gate.DISTRUSTED_S)
    assert (cache.known("good"), cache.known("bad")) == ((AGENT,), None)
    await asyncio.sleep(gate.TRUSTED_S - gate.DISTRUSTED_S)
    assert cache.known("good") is None
    assert gate.TRUSTED_S + gate.REVIEW_S < 60


@virtually
async def test_a_verdict_in_use_is_asked_for_anew_before_it_ends_and_outlasts_a_failure() -> None:
    reviewer = Reviewer()
    reviewer.go_on.set()
    cache = TokenCache(reviewer, now_s)
    assert await cache.verdict("good") == AGENT
    await asyncio.sleep(0.9 * gate.TRUSTED_S)
    assert cache.known("good") == (AGENT,)
    await turns()
    assert len(reviewer.asked) == 2
    await asyncio.sleep(0.9 * gate.TRUSTED_S)
    reviewer.go_on.clear()  # the API server does not answer
    assert cache.known("good") == (AGENT,)
    await asyncio.sleep(0.2 * gate.TRUSTED_S)
    assert cache.known("good") is None
    await cache.close()


@virtually
async def test_tokens_that_are_not_believed_push_no_good_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_DISTRUSTED", 3)
    reviewer = Reviewer()
    reviewer.go_on.set()
    cache = TokenCache(reviewer, now_s)
    await cache.verdict("good")
    for number in range(10):
        await cache.verdict(f"bad{number}")
    assert cache.known("good") == (AGENT,)
    assert len(cache._bad) == 3


@virtually
async def test_reviews_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_WAITING", 40)
    reviewer = Reviewer()
    cache = TokenCache(reviewer, now_s)
    waiting = [asyncio.create_task(cache.verdict(f"good{number}")) for number in range(40)]
    await turns()
    assert len(reviewer.asked) == gate.MAX_REVIEWS
    with pytest.raises(ReviewError, match="40 tokens are being checked already"):
        await cache.verdict("good40")
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, ReviewError) for each in done)
    await cache.close()


@virtually
async def test_tokens_without_end_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_CACHED", 3)
    reviewer = Reviewer()
    reviewer.go_on.set()
    cache = TokenCache(reviewer, now_s)
    for number in range(5):
        await cache.verdict(f"good{number}")
    assert [cache.known(f"good{number}") is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]


# ------------------------------------------------------------ TokenReviews


@dataclass
class Api:
    """An API server with one answer to reviews, and one pod or none."""

    status: dict[str, Any]
    pod: dict[str, Any] | None = None
    sent: list[Any] = field(default_factory=list)

    async def create(self, _: object, __: object, body: Any, **___: object) -> dict[str, Any]:
        self.sent.append(body)
        return {"status": self.status}

    async def get(self, *_: object, **__: object) -> dict[str, Any]:
        if self.pod is None:
            raise RefusedError(404, "NotFound", "no such pod")
        return self.pod


POD = {"metadata": {"uid": "u"}, "spec": {"nodeName": "n7"}}
BOUND = {"authentication.kubernetes.io/pod-name": ["agent"], "authentication.kubernetes.io/pod-uid": ["u"]}


def said(**user: Any) -> dict[str, Any]:
    told = {"username": "system:serviceaccount:p:agent", **user}
    return {"authenticated": True, "audiences": ["us"], "user": told}


@pytest.mark.parametrize(
    ("status", "pod", "found"),
    [
        (
            said(extra={"authentication.kubernetes.io/node-name": ["n1"]}),
            None,
            TokenIdentity("p", "agent", "n1"),
        ),
        (said(extra=BOUND), POD, TokenIdentity("p", "agent", "n7")),
        (said(extra=BOUND), {**POD, "metadata": {"uid": "another"}}, TokenIdentity("p", "agent")),
        (said(extra=BOUND), None, TokenIdentity("p", "agent")),
        (said(), None, TokenIdentity("p", "agent")),
        (said(username="admin"), None, None),
        (said(username="system:serviceaccount:p"), None, None),
        (said() | {"audiences": ["others"]}, None, None),
        (said() | {"audiences": None}, None, None),
        (said() | {"authenticated": False}, None, None),
        (said() | {"authenticated": "true"}, None, None),
        ({}, None, None),
    ],
)
async def test_the_api_servers_word(
    status: dict[str, Any], pod: dict[str, Any] | None, found: object
) -> None:
    """The node is in the token's claims, else that of its pod, if that still has its UID. A token for another audience is none."""
    api = Api(status, pod)
    answer = await review(cast("KubernetesApi", api), "t", "us", deadline_s=1)
    assert answer == found
    assert api.sent[0]["spec"] == {"token": "t", "audiences": ["us"]}
