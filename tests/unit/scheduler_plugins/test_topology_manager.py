"""The topology manager: the winner of the published product of hints, policies, reasons."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placing.plugins.topology_manager import (
    ANY,
    HintProvider,
    Hints,
    NumaAdmission,
    NumaHint,
    NumaTopologyPolicy,
    NumaUse,
    admit,
    mask_of,
    masks,
    merge,
    merge_policies,
    nodes_in,
)

ALL_OF_3 = 0b111
BEST_EFFORT, RESTRICTED = NumaTopologyPolicy.BEST_EFFORT, NumaTopologyPolicy.RESTRICTED
SINGLE = NumaTopologyPolicy.SINGLE_NUMA_NODE

hints = st.builds(
    NumaHint,
    mask=st.none() | st.integers(1, ALL_OF_3),
    is_preferred=st.booleans(),
    score=st.integers(0, 3),
)
components = st.lists(st.lists(hints, min_size=1, max_size=4), max_size=3)


def published(everything: int, parts: Sequence[Sequence[NumaHint]]) -> NumaHint | None:
    """The winner of the Cartesian product, as the source finds it."""
    found = []
    for combination in product(*parts):
        mask = everything
        for hint in combination:
            mask &= everything if hint.mask is None else hint.mask
        named = {hint.mask for hint in combination if hint.mask is not None}
        is_preferred = all(hint.is_preferred for hint in combination) and len(named) <= 1
        score = sum(hint.score for hint in combination if hint.mask == mask)
        if mask:
            found.append(NumaHint(mask, is_preferred, score))
    return (
        min(
            found,
            key=lambda hint: (not hint.is_preferred, (hint.mask or 0).bit_count(), -hint.score, hint.mask),
        )
        if found
        else None
    )


def offering(*given: Hints | tuple[str, ...]) -> list[HintProvider]:
    return [HintProvider(partial(_identity, each), lambda _: ()) for each in given]


def _identity(hints: Hints | tuple[str, ...]) -> Hints | tuple[str, ...]:
    return hints


@given(components)
def test_the_winner_is_that_of_the_published_product(parts: list[list[NumaHint]]) -> None:
    found, expected = merge(ALL_OF_3, parts), published(ALL_OF_3, parts)
    if expected is None:
        assert (found.mask, found.is_preferred) == (ALL_OF_3, False)
    else:
        assert (found.mask, found.is_preferred, found.score) == (
            expected.mask,
            expected.is_preferred,
            expected.score,
        )


@given(st.data())
def test_the_order_of_hints_and_resources_does_not_matter(data: st.DataObject) -> None:
    parts = data.draw(components)
    mixed = [data.draw(st.permutations(part)) for part in data.draw(st.permutations(parts))]
    assert merge(ALL_OF_3, parts) == merge(ALL_OF_3, mixed)


@given(components, st.sampled_from([RESTRICTED, SINGLE]))
def test_no_set_is_admitted_that_a_provider_did_not_prefer(
    parts: list[list[NumaHint]], policy: NumaTopologyPolicy
) -> None:
    providers = offering(*({f"r{index}": part} for index, part in enumerate(parts)))
    admission = admit(policy, (0, 1, 2), providers)
    if admission.is_admitted and admission.hint.mask is not None:
        for part in parts:
            assert any(hint.is_preferred and hint.mask in {None, admission.hint.mask} for hint in part)
        if policy is SINGLE and any(hint.mask is not None for part in parts for hint in part):
            assert admission.hint.mask.bit_count() == 1


ONE, TWO, BOTH = NumaHint(1, True), NumaHint(2, True), NumaHint(3, False)


@pytest.mark.parametrize(
    ("policy", "given", "admission"),
    [
        (SINGLE, {"cpu": [ONE, TWO, BOTH], "memory": [TWO, BOTH]}, NumaAdmission(NumaHint(2, True))),
        (SINGLE, {"cpu": None}, NumaAdmission(NumaHint(None, True))),
        (
            SINGLE,
            {"cpu": [NumaHint(3, True)]},
            NumaAdmission(
                NumaHint(None, False, is_unsatisfied=True),
                ("Unaligned NUMA Hint cause cpu prefer [0+1] among [0+1]",),
            ),
        ),
        (RESTRICTED, {"cpu": [NumaHint(3, True)]}, NumaAdmission(NumaHint(3, True))),
        (
            RESTRICTED,
            {"cpu": [ONE, BOTH], "memory": [TWO, BOTH]},
            NumaAdmission(
                NumaHint(1, False, is_unsatisfied=True),
                (
                    "Unaligned NUMA Hint cause cpu prefer [0] among [0, 0+1] & memory prefer [1] among [1, 0+1]",
                ),
            ),
        ),
        (
            BEST_EFFORT,
            {"cpu": [ONE], "memory": [TWO]},
            NumaAdmission(NumaHint(3, False, is_unsatisfied=True)),
        ),
        (BEST_EFFORT, {"cpu": [BOTH]}, NumaAdmission(NumaHint(3, False))),
        (
            RESTRICTED,
            {"cpu": []},
            NumaAdmission(NumaHint(3, False, is_unsatisfied=True), ("Unsatisfied NUMA cpu",)),
        ),
        (BEST_EFFORT, {}, NumaAdmission(NumaHint(3, True))),
        (
            BEST_EFFORT,
            {"cpu": [NumaHint(1, True, 10), NumaHint(2, True, 20)]},
            NumaAdmission(NumaHint(2, True, 20)),
        ),
    ],
)
def test_policies(policy: NumaTopologyPolicy, given: Hints, admission: NumaAdmission) -> None:
    assert admit(policy, (0, 1), offering(given)) == admission


def test_a_provider_that_cannot_serve_the_pod_rejects_it_under_every_policy() -> None:
    rejected = admit(BEST_EFFORT, (0, 1), offering({"cpu": [ONE]}, ("no device",)))
    assert rejected.reasons == ("no device",)


def test_the_winner_is_told_to_everybody_and_one_can_still_refuse() -> None:
    told: list[NumaHint] = []

    def refuse(hint: NumaHint) -> tuple[str, ...]:
        told.append(hint)
        return ("taken meanwhile",)

    admission = admit(SINGLE, (0, 1), [HintProvider(lambda: {"cpu": [TWO]}, refuse)])
    assert (told, admission.reasons) == ([TWO], ("taken meanwhile",))


@pytest.mark.parametrize(
    ("uses", "mask"),
    [
        ({0: NumaUse.SHARED}, 2),
        ({0: NumaUse.SINGLE}, 1),
        ({0: NumaUse.SHARED, 1: NumaUse.SHARED}, None),
    ],
)
def test_a_pod_that_wants_numa_nodes_for_itself_avoids_those_of_pods_of_several(
    uses: dict[int, NumaUse], mask: int | None
) -> None:
    of = {numa_node: frozenset({use}) for numa_node, use in uses.items()}
    admission = admit(SINGLE, (0, 1), offering({"cpu": [ONE, TWO]}), of)
    assert (admission.hint.mask if admission.is_admitted else None) == mask


def test_a_pod_of_several_numa_nodes_avoids_those_of_pods_of_one() -> None:
    given = {"cpu": [NumaHint(3, True), NumaHint(6, True)]}
    admission = admit(RESTRICTED, (0, 1, 2), offering(given), {0: frozenset({NumaUse.SINGLE})})
    assert admission.hint.mask == 6


def test_masks_come_small_first_also_of_numa_nodes_with_gaps() -> None:
    assert list(masks((0, 2))) == [0b001, 0b100, 0b101]
    assert (mask_of((0, 2)), list(nodes_in(0b101))) == (0b101, [0, 2])
    assert merge(0b101, [[ANY]]).mask == 0b101


@pytest.mark.parametrize(
    ("node", "pod", "found"),
    [
        ("", "", ""),
        ("Restricted", "", "Restricted"),
        ("", "BestEffort", "BestEffort"),
        ("Restricted", "Restricted", "Restricted"),
        ("Restricted", "BestEffort", None),
    ],
)
def test_policies_of_node_and_pod(node: str, pod: str, found: str | None) -> None:
    assert merge_policies(NumaTopologyPolicy(node), NumaTopologyPolicy(pod)) == found
