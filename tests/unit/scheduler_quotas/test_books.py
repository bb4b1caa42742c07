"""The books of quotas after any changes are those that are made anew from what there is."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.quotas.admission import QuotaAccount, QuotaRules
from scheduler.quotas.books import CountedPod, QuotaBooks
from scheduler.quotas.tree import QuotaTree
from scheduler.quotas.values import Amounts, QuotaPod, QuotaSpec

PODS = "uvwx"
TREES = [
    QuotaTree([QuotaSpec("a", max={"cpu": 9}), QuotaSpec("b", max={"cpu": 9})]),
    QuotaTree(
        [QuotaSpec("a", max={"cpu": 8}, min={"cpu": 5}, is_parent=True), QuotaSpec("b", "a", max={"cpu": 7})]
    ),
    QuotaTree(),
]


@dataclass(frozen=True)
class PlainNode:
    """A node of so much CPU, with pods of so much in quotas."""

    cpu: int
    pods: tuple[tuple[str, str, int], ...]


def counted(uid: str, quota: str, cpu: int) -> CountedPod:
    """Those of even amounts may be preempted."""
    pod = QuotaPod(uid, uid, {"cpu": cpu}, is_preemptible=cpu % 2 == 0)
    return CountedPod(pod, quota, "default", {"cpu": cpu})


def read(node: PlainNode) -> list[CountedPod]:
    return [replace(counted(*each), used={"cpu": each[2]}) for each in node.pods]


def allocatable(node: PlainNode) -> Amounts:
    return {"cpu": node.cpu}


def figures(account: QuotaAccount) -> object:
    """All that follows from the books, without zeros."""

    def plain(amounts: Amounts) -> dict[str, int]:
        return {name: amount for name, amount in amounts.items() if amount}

    return [
        (name, plain(share.request), plain(share.runtime), plain(account.used[name]))
        for name, share in sorted(account.shares.items())
    ], {name: plain(amounts) for name, amounts in account.non_preemptible_used.items()}


def placed(nodes: dict[str, PlainNode]) -> set[str]:
    return {uid for node in nodes.values() for uid, _, _ in node.pods}


def on_one_node(nodes: dict[str, PlainNode]) -> dict[str, PlainNode]:
    """The same nodes; each pod is on the first one only."""
    found: dict[str, PlainNode] = {}
    for name, node in nodes.items():
        own = tuple(each for each in node.pods if each[0] not in placed(found))
        found[name] = replace(node, pods=own)
    return found


_pod = st.tuples(st.sampled_from(PODS), st.sampled_from("ab"), st.integers(0, 5))
_nodes = st.dictionaries(
    st.sampled_from("mn"),
    st.builds(
        PlainNode, st.integers(0, 9), st.lists(_pod, max_size=3, unique_by=lambda each: each[0]).map(tuple)
    ),
)


@given(
    st.lists(
        st.tuples(st.just("see"), _nodes)
        | st.tuples(st.sampled_from(["wait", "reserve"]), _pod)
        | st.tuples(st.sampled_from(["wait no more", "unreserve"]), st.sampled_from(PODS))
        | st.tuples(st.just("use"), st.sampled_from(TREES)),
        max_size=12,
    )
)
def test_whatever_happens_a_pod_counts_once(steps: list[tuple[str, object]]) -> None:
    books = QuotaBooks(QuotaRules(), read, allocatable)
    tree, waiting, reserved = QuotaTree(), dict[str, CountedPod](), dict[str, CountedPod]()
    nodes: dict[str, PlainNode] = {}
    for what, about in steps:
        match what, about:
            case "see", dict():
                nodes = on_one_node(about)
                books.see(nodes)
                reserved = {uid: each for uid, each in reserved.items() if uid not in placed(nodes)}
            case "use", QuotaTree():
                tree = about
                books.use(tree)
            case "wait", (str(uid), str(quota), int(cpu)):
                waiting[uid] = counted(uid, quota, cpu)
                books.wait(uid, waiting[uid])
            case "reserve", (str(uid), str(quota), int(cpu)):
                if uid not in placed(nodes):
                    reserved[uid] = replace(counted(uid, quota, cpu), used={"cpu": cpu})
                    books.reserve(uid, reserved[uid])
            case "wait no more", str(uid):
                waiting.pop(uid, None)
                books.wait(uid, None)
            case "unreserve", str(uid):
                reserved.pop(uid, None)
                books.reserve(uid, None)
            case _:
                raise AssertionError(what)
        books.account()
    anew = QuotaBooks(QuotaRules(), read, allocatable)
    anew.use(tree)
    for uid, each in waiting.items():
        anew.wait(uid, each)
    for uid, each in reserved.items():
        anew.reserve(uid, each)
    anew.see(nodes)
    assert figures(books.account()) == figures(anew.account())
    for name in tree.specs:
        assert {each.uid: each for each in books.pods(name)} == {each.uid: each for each in anew.pods(name)}
