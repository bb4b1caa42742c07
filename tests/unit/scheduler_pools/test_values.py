"""The members of a chain say one thing together, and nobody can change the values that a hook is handed."""

import itertools
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from types import MappingProxyType
from typing import Any

import pytest

from protocol.values import Resources
from protocol.wire import PodName
from scheduler.pools.core.errors import new_insufficient_resources
from scheduler.pools.core.values import (
    ADMITTED,
    POD_ADMITTED,
    Admission,
    Context,
    Member,
    PodAdmission,
    Pool,
    PoolLimits,
    Purpose,
    VmRequest,
    merged,
)

UNIT = Resources(1000, 2**30)
FULL = new_insufficient_resources("full")
POOL = Pool(
    "blue",
    UNIT,
    PoolLimits(8, 4),
    labels={"team": "a"},
    annotations={"note": "b"},
    finalizers=("keep",),
    replicas=3,
    uid="uid-blue",
    generation=2,
)
MEMBER = Member(PodName("vm", "default"), "uid-vm", "n1", {"team": "a"}, UNIT, UNIT, 1)
REQUEST = VmRequest(PodName("vm", "default"), "uid-vm", "n1", {"team": "a"}, UNIT, UNIT * 2, 1, 2)
CONTEXT = Context(Purpose.PROBE, (REQUEST,), 5.0)
HANDED = [POOL, POOL.limits, MEMBER, REQUEST, CONTEXT, Admission(POOL), PodAdmission({})]


def chained(*words: Admission) -> Admission:
    found = ADMITTED
    for number, word in enumerate(words):
        found = merged(found, word, f"p{number}")
    return found


# ------------------------------------------------------------ merging


def test_an_empty_admission_admits_everything() -> None:
    assert chained() is ADMITTED
    assert chained(Admission(), Admission()) == ADMITTED
    assert (ADMITTED.updated, ADMITTED.admitted) == (False, None)
    assert (ADMITTED.admitted_or(7), ADMITTED.error) == (7, None)


def test_a_cap_of_zero_is_a_cap() -> None:
    none = Admission(admitted=0)
    assert none.admitted_or(7) == 0


FIVE = Admission(admitted=5, reason="Five", message="five")
THREE = Admission(admitted=3, reason="Three", message="three")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        # The smallest cap wins and brings its texts and its plugin's name; a tie keeps the earlier one's.
        ([Admission(admitted=0), THREE], Admission(admitted=0, plugin="p0")),
        ([THREE, Admission(admitted=0)], Admission(admitted=0, plugin="p1")),
        ([FIVE, THREE, Admission(admitted=4, reason="Four")], replace(THREE, plugin="p1")),
        ([THREE, Admission(admitted=3, reason="Second")], replace(THREE, plugin="p0")),
        # Without texts of its own a cap borrows no other's; texts without a cap are not passed on.
        ([FIVE, Admission(admitted=3)], Admission(admitted=3, plugin="p1")),
        ([Admission(reason="Odd", message="odd"), Admission(admitted=3)], Admission(admitted=3, plugin="p1")),
        ([THREE, Admission(reason="Odd")], replace(THREE, plugin="p0")),
        # An error brings its plugin's name and keeps the cap of others; cap and wait beside it count.
        ([THREE, Admission(error=FULL)], replace(THREE, error=FULL, plugin="p1")),
        (
            [Admission(admitted=3, retry_after_s=1.0), Admission(admitted=2, retry_after_s=4.0, error=FULL)],
            Admission(admitted=2, retry_after_s=4.0, error=FULL, plugin="p1"),
        ),
        # The name that a plugin gives itself is not believed.
        ([Admission(admitted=1, plugin="other")], Admission(admitted=1, plugin="p0")),
        ([Admission(error=FULL, plugin="other")], Admission(error=FULL, plugin="p0")),
        ([Admission(plugin="other")], Admission()),
    ],
)
def test_what_a_chain_says_together(said: list[Admission], found: Admission) -> None:
    assert chained(*said) == found


def test_the_longest_wait_wins_whosever_it_is() -> None:
    words = [
        Admission(admitted=2, retry_after_s=1.0),
        Admission(retry_after_s=9.0),
        Admission(admitted=5, retry_after_s=0.0),
        Admission(),
    ]
    for order in itertools.permutations(words):
        found = chained(*order)
        assert (found.admitted, found.retry_after_s) == (2, 9.0)
    assert chained(Admission(retry_after_s=0.0), Admission()).retry_after_s == 0.0


def test_the_latest_changed_pool_stays_also_beside_an_error() -> None:
    first, second = POOL.with_replicas(1), POOL.with_replicas(2)
    assert chained(Admission(pool=first), Admission(error=FULL)).pool is first
    assert chained(Admission(pool=first), Admission(pool=second, error=FULL)).pool is second
    assert chained(Admission(pool=first), Admission(admitted=1)).updated


# ------------------------------------------------------------ nothing can be changed


@pytest.mark.parametrize("value", HANDED, ids=lambda value: type(value).__name__)
def test_no_field_can_be_set_removed_or_added(value: Any) -> None:
    for name in [field.name for field in fields(value)]:
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(value, name)
    with pytest.raises((AttributeError, TypeError)):
        value.extra = 1
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    "texts",
    [POOL.labels, POOL.annotations, MEMBER.labels, REQUEST.labels, Pool("p", UNIT).labels],
    ids=["pool labels", "annotations", "member labels", "request labels", "no labels"],
)
def test_no_text_can_be_changed(texts: Any) -> None:
    before = dict(texts)
    with pytest.raises(TypeError):
        texts["team"] = "mine"
    for change in ("clear", "pop", "popitem", "setdefault", "update", "__delitem__", "__ior__"):
        assert not hasattr(texts, change) or change == "__ior__"
    with pytest.raises(TypeError):
        texts |= {"team": "mine"}
    assert dict(texts) == before


def _live(mapping: dict[str, str]) -> list[Mapping[str, str]]:
    return [mapping, MappingProxyType(mapping)]


@pytest.mark.parametrize("view", [0, 1], ids=["a dict", "a view of a dict"])
def test_who_made_a_value_cannot_change_its_texts_later(view: int) -> None:
    texts = {"team": "a"}
    given = _live(texts)[view]
    made: list[Any] = [replace(value, labels=given) for value in (POOL, MEMBER, REQUEST)]
    pool = replace(POOL, annotations=given)
    texts.update(team="mine", more="b")
    assert [dict(each) for each in (pool.annotations, *(value.labels for value in made))] == [
        {"team": "a"}
    ] * 4


def test_finalizers_become_a_tuple_of_their_own() -> None:
    names: Any = ["keep"]
    pool = Pool("blue", UNIT, finalizers=names)
    names.append("more")
    assert pool.finalizers == ("keep",)


# ------------------------------------------------------------ small things


def test_another_number_of_replicas_changes_nothing_else() -> None:
    other = POOL.with_replicas(9)
    assert other.replicas == 9
    assert other.with_replicas(POOL.replicas) == POOL
    assert POOL.replicas == 3


def test_the_first_request_is_the_one_that_asks() -> None:
    assert Context(Purpose.CREATE).request is None
    second = replace(REQUEST, uid="uid-2")
    assert Context(Purpose.PROBE, (REQUEST, second)).request is REQUEST


def test_a_pod_is_updated_where_a_manifest_is_given() -> None:
    assert not POD_ADMITTED.updated
    assert PodAdmission({}).updated
