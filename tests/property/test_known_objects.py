"""The knowledge of objects, against a server that is known in full: lists that come late, a watch that lags, restores."""

import copy
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hosting.kubernetes.core.known import Change, Changed, Deleted, Key, KnownObjects

NAMES = st.sampled_from(["a", "b", "c"])
Manifest = dict[str, Any]


@dataclass
class Truth:
    """The server: each write with its version and moment. All is one namespace."""

    version: int = 10
    now_s: float = 0.0
    objects: dict[Key, Manifest] = field(default_factory=dict)
    writes: list[tuple[int, float, Key, Manifest | None, Manifest]] = field(default_factory=list)
    uids: int = 0

    def write(self, name: str, content: int | None) -> None:
        """Create, change or, with None, delete an object."""
        key, self.version = ("ns", name), self.version + 1
        found = self.objects.pop(key, None)
        if found is None and content is None:
            return
        self.uids += found is None
        metadata = (
            dict(found["metadata"]) if found else {"namespace": "ns", "name": name, "uid": str(self.uids)}
        )
        metadata["resourceVersion"] = str(self.version)
        manifest = {"metadata": metadata, "content": content}
        if content is not None:
            self.objects[key] = manifest
        self.writes.append((self.version, self.now_s, key, self.objects.get(key), manifest))

    def at(self, key: Key, before_s: float) -> Manifest | None:
        """The object as of all writes that were accepted before a moment."""
        states = [now for _, at_s, of, now, _ in self.writes if of == key and at_s < before_s]
        return states[-1] if states else None


@dataclass
class Asked:
    """A list under way: what was asked at `sent_s`, and, once the server has made it, the answer."""

    keys: tuple[Key, ...] | None
    sent_s: float
    sent_at: int
    answer: tuple[list[Manifest], int] | None = None


class Known(RuleBasedStateMachine):
    """A store beside its server."""

    def __init__(self) -> None:
        super().__init__()
        self.truth, self.known = Truth(), KnownObjects()
        self.asked: list[Asked] = []
        self.cursor = 0
        """How far the watch has come: lists may have brought the store further."""
        self.folded: dict[Key, Manifest] = {}
        self.seen: dict[Key, int] = {}
        self.uids_gone: set[str] = set()

    def take(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            metadata = change.manifest["metadata"]
            key = (metadata["namespace"], metadata["name"])
            if isinstance(change, Deleted):
                assert self.folded.pop(key) == change.manifest
                self.uids_gone.add(metadata["uid"])
            else:
                assert isinstance(change, Changed)
                assert self.folded.get(key) == change.previous, "each change goes on from the one before"
                assert metadata["uid"] not in self.uids_gone, "nothing comes back"
                self.folded[key] = change.manifest

    @rule(name=NAMES, content=st.one_of(st.none(), st.integers(0, 1)))
    def write(self, name: str, content: int | None) -> None:
        self.truth.write(name, content)

    @rule()
    def pass_time(self) -> None:
        self.truth.now_s += 1

    @rule(
        keys=st.one_of(
            st.none(), st.sets(NAMES).map(lambda names: tuple(("ns", each) for each in sorted(names)))
        )
    )
    def ask(self, keys: tuple[Key, ...] | None) -> None:
        self.asked.append(Asked(keys, self.truth.now_s, self.known.position))

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        """As it mostly is: a list of one object, and its answer at once."""
        found, key = self.truth.objects.get(("ns", name)), ("ns", name)
        items = [copy.deepcopy(found)] if found is not None else []
        self.take(self.known.listed(items, self.truth.version, self.truth.now_s, (key,)))

    @rule(data=st.data())
    @precondition(lambda self: self.asked)
    def answer(self, data: st.DataObject) -> None:
        """The server makes an answer, or an answer that was made arrives."""
        asked = data.draw(st.sampled_from(self.asked))
        if asked.answer is None:
            there = self.truth.objects.items()
            items = [copy.deepcopy(each) for key, each in there if asked.keys is None or key in asked.keys]
            asked.answer = (items, self.truth.version)
            return
        self.asked.remove(asked)
        items, version = asked.answer
        if asked.keys is None:
            self.take(self.known.listed_all(items, version, asked.sent_s, asked.sent_at))
        else:
            self.take(self.known.listed(items, version, asked.sent_s, asked.keys))

    @rule(name=NAMES, versions_ago=st.integers(0, 3))
    def read_late(self, name: str, versions_ago: int) -> None:
        """The answer of one object arrives late: it was made some writes ago."""
        key = ("ns", name)
        writes = self.truth.writes[: max(0, len(self.truth.writes) - versions_ago)]
        version, sent_s = writes[-1][:2] if writes else (10, 0.0)
        states = [now for _, _, of, now, _ in writes if of == key]
        items = [copy.deepcopy(states[-1])] if states and states[-1] is not None else []
        self.take(self.known.listed(items, version, sent_s, (key,)))

    def coming(self) -> list[tuple[int, float, Key, Manifest | None, Manifest]]:
        """The events that the watch has not shown yet."""
        return [each for each in self.truth.writes if each[0] > self.cursor]

    @rule()
    @precondition(lambda self: self.known.has_begun)
    def begin_watch(self) -> None:
        self.cursor = self.known.position

    @rule()
    @precondition(lambda self: self.known.has_begun and self.cursor)
    def watch(self) -> None:
        """The next event of the watch."""
        if coming := self.coming():
            self.cursor, _, _, now, last = coming[0]
            self.take(self.known.shown(copy.deepcopy(last), is_deleted=now is None))

    @rule()
    @precondition(lambda self: self.known.has_begun and self.cursor)
    def bookmark(self) -> None:
        if not self.coming():
            self.cursor = self.truth.version
            self.known.reach(self.cursor)

    @rule(lost=st.integers(1, 4))
    @precondition(lambda self: self.known.has_begun and not self.asked)
    def restore(self, lost: int) -> None:
        """The server is restored from a backup that is older than what was shown. The next list is sent after that."""
        kept = self.truth.writes[:-lost]
        version = max([10, *(version for version, *_ in kept)])
        if version >= self.known.position:
            return
        self.truth.writes, self.truth.version = kept, version
        self.truth.objects = {}
        for _, _, key, now, _ in kept:
            self.truth.objects.pop(key, None)
            if now is not None:
                self.truth.objects[key] = now
        self.truth.now_s += 1
        self.truth.uids += 100  # UIDs are drawn, and none comes twice
        self.uids_gone.clear()
        self.seen.clear()
        items = [copy.deepcopy(each) for each in self.truth.objects.values()]
        sent_at = self.known.position
        self.take(self.known.listed_all(items, version, self.truth.now_s, sent_at))
        self.cursor = self.known.position

    @invariant()
    def what_was_told_is_what_is_known(self) -> None:
        assert self.folded == dict(self.known.objects)

    @invariant()
    def nothing_goes_back(self) -> None:
        for key, manifest in self.known.objects.items():
            version = int(manifest["metadata"]["resourceVersion"])
            assert self.seen.get(key, 0) <= version
            self.seen[key] = version

    @invariant()
    def moments_are_true(self) -> None:
        for name in "abc":
            key = ("ns", name)
            known = self.known.find(key)
            begun_s = max(self.known.begun_s, known.begun_s if known is not None else self.known.begun_s)
            then, now = self.truth.at(key, begun_s), self.known.objects.get(key)
            if then is not None and now is None:  # it has gone since
                assert any(of == key and is_ is None for _, _, of, is_, _ in self.truth.writes)
                last = max(
                    version for version, _, of, is_, _ in self.truth.writes if of == key and is_ is None
                )
                assert last > int(then["metadata"]["resourceVersion"])
            if then is not None and now is not None:
                of_then, of_now = (int(each["metadata"]["resourceVersion"]) for each in (then, now))
                assert of_then <= of_now
            if then is None and now is not None:
                made_s = [at_s for _, at_s, of, is_, _ in self.truth.writes if of == key and is_ == now]
                assert made_s, "it is there as the server once had it"
                assert made_s[0] >= begun_s, "its end was accepted before that moment"

    def teardown(self) -> None:
        if self.known.has_begun:
            self.begin_watch()
            while self.coming():
                self.watch()
            assert dict(self.known.objects) == self.truth.objects, "in the end, what is there is known"


TestKnownObjects = Known.TestCase
TestKnownObjects.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


KEY = ("ns", "a")


def manifest(version: int) -> Manifest:
    return {"metadata": {"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": str(version)}}


@pytest.mark.parametrize("gone_first", [True, False], ids=["gone first", "there first"])
def test_answers_from_before_its_end_do_not_bring_an_object_back(gone_first: bool) -> None:
    known = KnownObjects()
    known.listed_all([], 10, 0.0, 0)
    known.shown(manifest(11))
    known.shown(manifest(12), is_deleted=True)
    late: list[tuple[list[Manifest], int]] = [([], 10), ([manifest(11)], 11)]
    for items, version in late if gone_first else reversed(late):
        assert known.listed(items, version, 0.5, (KEY,)) == ()
    assert known.find(KEY) is None
    assert not known.objects


WRITE, WRITE_AND_SHOW, SHOW = "write", "write and show", "show"


@pytest.mark.parametrize("first", [WRITE, WRITE_AND_SHOW])
def test_no_order_of_late_answers_about_an_object_that_comes_and_goes_brings_it_back(first: str) -> None:
    """All walks of some steps: a number is the answer that was made so many writes ago."""
    for steps in itertools.product((WRITE, WRITE_AND_SHOW, SHOW, 0, 1, 2), repeat=4):
        walk = Known()
        walk.take(walk.known.listed_all([], walk.truth.version, 0.0, 0))
        walk.begin_watch()
        for step in (first, *steps):
            if isinstance(step, int):
                walk.read_late("a", step)
            if step in (WRITE, WRITE_AND_SHOW):
                walk.pass_time()
                walk.write("a", None if walk.truth.objects else 0)
            while step in (WRITE_AND_SHOW, SHOW) and walk.coming():
                walk.watch()
            walk.what_was_told_is_what_is_known()
            walk.nothing_goes_back()
            walk.moments_are_true()
        walk.teardown()
