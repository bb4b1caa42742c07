"""The news of sizes that changed names the true cause, and not each step of many."""

import pytest

from agent.core.model import PerResource
from agent.core.owner_notices import EVERY_S, NO_NEWS, AskedSizeChange, OwnerNotice
from protocol.values import Resources
from tests.support.amounts import cu
from tests.unit.agent.driver import APART, Driver, steady

THROTTLED = "container main was held back by its CPU limit of 2 in 52% of the periods in 0.5 s"


def told(driver: Driver) -> list[tuple[str, str]]:
    """The news of all changes, each told for itself: reason and text."""
    found = [NO_NEWS.heard(change).told(0.0)[1] for change in driver.size_changes]
    return [(each.reason, each.text) for each in found if each is not None]


def test_a_growth_by_the_policy_and_the_shrink_after_it_have_the_reasons_of_the_plan() -> None:
    driver = steady(cu(2))
    driver.load(4).wait(30)
    driver.load(2).wait(120)
    (first, grown), *_, (last, shrunk) = told(driver)
    assert (first, last) == ("Grown", "Shrunk")
    assert grown.startswith("CPU 2 → ")
    assert "CPUs busy" in grown
    assert "CPUs busy" in shrunk


@pytest.mark.parametrize(
    ("why", "cause"), [(THROTTLED, f"the guest cannot wait: {THROTTLED}"), ("", "the guest cannot wait")]
)
def test_an_urgent_growth_says_what_the_guest_has_said_of_it(why: str, cause: str) -> None:
    driver = steady(cu(2, 2), vm=APART)
    driver.try_upscale(cpu=True, why=why).wait(10)
    assert told(driver)[0] == ("Grown", f"CPU 2 → {driver.size_changes[0].after.vcpu_milli // 1000}: {cause}")


def test_what_somebody_else_has_done_is_none_of_ours() -> None:
    driver = steady(cu(2))
    driver.size = driver.target = cu(5)
    driver.wait(1)
    assert driver.size_changes == []


def change(before: Resources, after: Resources, cpu: str = "", memory: str = "") -> AskedSizeChange:
    return AskedSizeChange(before, after, PerResource(cpu, memory))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ([change(cu(2), cu(3), "busy", "busy")], ("Grown", "CPU 2 → 3, memory 2Gi → 3Gi: busy")),
        ([change(cu(2), cu(3), "busy", "full")], ("Grown", "CPU 2 → 3: busy; memory 2Gi → 3Gi: full")),
        ([change(cu(2, 3), cu(3, 2), "busy", "idle")], ("Grown", "CPU 2 → 3: busy; memory 3Gi → 2Gi: idle")),
        ([change(cu(3), cu(2), "idle", "idle")], ("Shrunk", "CPU 3 → 2, memory 3Gi → 2Gi: idle")),
        (
            [change(cu(1), cu(2, 1), "busy"), change(cu(2, 1), cu(4, 1), "busier")],
            ("Grown", "CPU 1 → 4: busier (2 times)"),
        ),
        ([change(cu(1), cu(2, 1), "busy"), change(cu(2, 1), cu(1), "idle")], None),
    ],
)
def test_changes_are_told_as_one(changes: list[AskedSizeChange], wanted: tuple[str, str] | None) -> None:
    news = NO_NEWS
    for each in changes:
        news = news.heard(each)
    _, notice = news.told(0.0)
    assert (None if notice is None else (notice.reason, notice.text)) == wanted
    assert notice is None or not notice.is_warning


def test_what_comes_to_nothing_delays_no_later_news() -> None:
    up, down = change(cu(1), cu(2, 1), "busy"), change(cu(2, 1), cu(1), "idle")
    news, notice = NO_NEWS.heard(up).heard(down).told(0.0)
    assert notice is None
    assert news.heard(up).told(5.0)[1] is not None


def test_changes_are_told_at_a_bounded_rate_and_none_is_lost() -> None:
    news, found = NO_NEWS, list[OwnerNotice]()
    for second in range(1, 901):
        news, notice = news.heard(change(cu(second), cu(second + 1), "busy", "busy")).told(float(second))
        found += [notice] if notice is not None else []
    assert len(found) == 3
    assert [each.text.partition(",")[0] for each in found] == ["CPU 1 → 2", "CPU 2 → 302", "CPU 302 → 602"]
    assert EVERY_S == 300
