"""Adapters that are broken on purpose, each with the clause of the suite that must catch it."""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from hosting.kubernetes.resources import PODS
from protocol.values import Observation
from protocol.wire import PodName
from scheduler.clusters.file import FileCluster, _reading
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.permits.core import events
from scheduler.ports import Cluster, ClusterUnreachableError
from tests.conformance.cluster_api_server import Listed
from tests.conformance.cluster_truth import Key, Thing
from tests.conformance.cluster_watched import Known, WatchedCluster
from tests.support.virtual_time import now_s

Batch = tuple[events.Input, ...]


class Wrapped:
    """An adapter around another."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner

    async def refresh(self) -> Batch:
        return self.changed(await self.inner.refresh())

    async def read(self, pods: Collection[PodName]) -> Batch:
        return self.changed(await self.inner.read(pods))

    def look(self, pod: PodName) -> events.Look:
        return self.inner.look(pod)

    def changed(self, batch: Batch) -> Batch:
        """The batch that is told instead."""
        return batch


def retelling(what: str, change: Callable[[Batch], Iterable[events.Input]]) -> type[Wrapped]:
    """An adapter around another that tells something else."""
    name = "".join(word.capitalize() for word in re.findall(r"\w+", what))
    return type(name, (Wrapped,), {"__doc__": what, "changed": lambda _, batch: tuple(change(batch))})


_ENDS: Final = (events.VmGone, events.PodGone, events.NodeGone, events.ClusterRead)
TELLS_ENDS_LAST: Final = retelling(
    "Tells ends last", lambda batch: sorted(batch, key=lambda event: isinstance(event, _ENDS))
)
SAYS_TOO_SOON: Final = retelling(
    "Says too soon that all was told",
    lambda batch: (
        events.ClusterRead(now_s()) if isinstance(each, events.ClusterRead) else each for each in batch
    ),
)
SAYS_FIRST: Final = retelling(
    "Says first that all was told",
    lambda batch: sorted(batch, key=lambda event: not isinstance(event, events.ClusterRead)),
)
NEVER_SAYS: Final = retelling(
    "Never says that all was told",
    lambda batch: (event for event in batch if not isinstance(event, events.ClusterRead)),
)
CALLS_NOTHING_NEW: Final = retelling(
    "Calls nothing new",
    lambda batch: (
        replace(each, is_new=False) if isinstance(each, events.VmSeen) else each for each in batch
    ),
)


# ---------------------------------------------------------------- versions


class TakesWhateverComes(WatchedCluster):
    """Goes by the order in which news come."""

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        self._known[key] = Known(version, thing, begun_s)
        self._changed.add(key)


class EndsWhateverHasTheName(WatchedCluster):
    """Does not ask which object of a name was deleted."""

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        super()._learn(key, thing, version, begun_s)
        if thing is None and key in self._known:
            self._known[key] = replace(self._known[key], thing=None)
            self._changed.add(key)


class ForgetsWhatWent(WatchedCluster):
    """Remembers no version of what has gone."""

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        super()._learn(key, thing, version, begun_s)
        if key in self._known and self._known[key].thing is None:
            del self._known[key]


class TellsAllAgain(Wrapped):
    """Tells all VMs with every refresh."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner)
        self.seen: dict[str, events.VmSeen] = {}

    def changed(self, batch: Batch) -> Batch:
        told = {event.vm.uid: event for event in batch if isinstance(event, events.VmSeen)}
        self.seen |= told
        again = [replace(seen, is_new=False) for uid, seen in self.seen.items() if uid not in told]
        return (*again, *batch)


class BeginsAnewAfterGaps(WatchedCluster):
    """Takes each list for the first one."""

    def _take_list(self, listed: Listed, keys: Iterable[Key], sent_s: float) -> None:
        if keys and self._began.is_set() and len(list(keys)) == len(self._known):
            self._known.clear()
            self._told.clear()
            self._position = 0
        super()._take_list(listed, keys, sent_s)


class MissesWhatListsLack(WatchedCluster):
    """Learns from a list what is there, and nothing of what is not."""

    def _take_list(self, listed: Listed, keys: Iterable[Key], sent_s: float) -> None:
        del keys
        super()._take_list(listed, (), sent_s)


# ---------------------------------------------------------------- moments


class DatesEventsAtTheirArrival(WatchedCluster):
    """Takes what a watch shows for what is so now."""

    def _begun_s(self, version: int) -> float:
        del version
        return now_s()


class DatesAnswersAtTheirArrival(WatchedCluster):
    """Says that a list was sent when it came."""

    def _take_list(self, listed: Listed, keys: Iterable[Key], sent_s: float) -> None:
        del sent_s
        super()._take_list(listed, keys, now_s())


class TakesAnObjectsVersionForTheStores(WatchedCluster):
    """Holds that whatever is newer than an object that was read is newer than the read."""

    def _take_list(self, listed: Listed, keys: Iterable[Key], sent_s: float) -> None:
        for item in listed.items:
            self._mark(item.version, sent_s)
        super()._take_list(listed, keys, sent_s)


class DatesReadsAtTheirEnd(FileCluster):
    """Says that a read began when it ended."""

    def _as_of_s(self, begun_s: float, written_s: float | None) -> float:
        del begun_s
        return super()._as_of_s(self._clock(), written_s)


class TrustsWhatItFinds(FileCluster):
    """Takes sizes that nobody keeps up to date for those of now."""

    def _as_of_s(self, begun_s: float, written_s: float | None) -> float:
        del written_s
        return begun_s


class DatesEachAnswerAlone(WatchedCluster):
    """Goes by the moment of the answer that came last."""

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        super()._learn(key, thing, version, begun_s)
        if key in self._known:
            self._known[key] = replace(self._known[key], begun_s=begun_s)


class AnswersFromItsView(WatchedCluster):
    """Reads nothing, and tells what it knows."""

    async def read(self, pods: Collection[PodName]) -> Batch:
        return self._tell([("vm", pod.name) for pod in pods])


class SharesReads(Wrapped):
    """Lets a read have the answer of one that is under way."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner)
        self.under_way: asyncio.Task[Batch] | None = None

    async def refresh(self) -> Batch:
        self.under_way = asyncio.create_task(self.inner.refresh())
        return await self.under_way

    async def read(self, pods: Collection[PodName]) -> Batch:
        if self.under_way is not None and not self.under_way.done():
            await asyncio.wait([self.under_way])
            return self.view(pods)
        return await self.inner.read(pods)

    def view(self, pods: Collection[PodName]) -> Batch:
        assert isinstance(self.inner, FileCluster)
        known = self.inner._now.vms
        found = [known[pod] for pod in pods if pod in known]
        return tuple(events.VmSeen(vm.spec, _reading(vm, now_s()), now_s()) for vm in found)


class CallsAllNew(Wrapped):
    """Says of each VM that comes that it is new."""

    def __init__(self, inner: Cluster) -> None:
        super().__init__(inner)
        self.uids: set[str] = set()

    def changed(self, batch: Batch) -> Batch:
        told = [
            replace(event, is_new=event.vm.uid not in self.uids)
            if isinstance(event, events.VmSeen)
            else event
            for event in batch
        ]
        self.uids |= {event.vm.uid for event in batch if isinstance(event, events.VmSeen)}
        return tuple(told)


# ---------------------------------------------------------------- errors and looks


class LosesWhatItHolds(WatchedCluster):
    """Has nothing to tell after an error."""

    async def refresh(self) -> Batch:
        try:
            return await super().refresh()
        except ClusterUnreachableError:
            self._changed.clear()
            raise


class HidesErrors(Wrapped):
    """Tells nothing where the cluster is unreachable, and says nothing of that."""

    async def refresh(self) -> Batch:
        try:
            return await super().refresh()
        except ClusterUnreachableError:
            return ()


class ShowsNothingAfterErrors(Wrapped):
    """Holds that nothing is there where nothing can be read."""

    fails = False

    async def refresh(self) -> Batch:
        self.fails = True
        batch = await super().refresh()
        self.fails = False
        return batch

    def look(self, pod: PodName) -> events.Look:
        return events.Look(found=False) if self.fails else super().look(pod)


class WaitsForEver(WatchedCluster):
    """Gives a read all the time that it takes."""

    async def read(self, pods: Collection[PodName]) -> Batch:
        keys: list[Key] = [("vm", pod.name) for pod in pods]
        sent_s = now_s()
        self._take_list(await self._api.list(keys), keys, sent_s)
        return self._tell(keys)


class GivesAwayTooSoon(Wrapped):
    """Does something else between taking what is to be told and telling it."""

    async def refresh(self) -> Batch:
        batch = await super().refresh()
        await asyncio.sleep(0.2)
        return batch


class LooksAhead(WatchedCluster):
    """Shows what it has not told."""

    def look(self, pod: PodName) -> events.Look:
        known = self._known.get(("vm", pod.name))
        if known is None or known.thing is None or known.thing.has_ended:
            return events.Look(found=False)
        return events.Look(True, Observation(known.thing.amount, known.thing.amount, known.begun_s))


class LearnsNothingFromOldNews(WatchedCluster):
    """Does not see that what it knows is newer than a read that has shown something older."""

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        known = self._known.get(key)
        if known is None or version >= known.version:
            super()._learn(key, thing, version, begun_s)


# ---------------------------------------------------------------- Kubernetes


class DatesWhatItTells(KubernetesCluster):
    """Takes what was shown for what is so when it is told."""

    def _begun_s(self, *_: object) -> float:
        return now_s()


class NeverMovesItsMoments(KubernetesCluster):
    """Dates what is told again as it was told first."""

    def _begun_s(self, key: tuple[str, str], known: Any, told: Any, description: Any) -> float:
        begun_s = super()._begun_s(key, known, told, description)
        return float(told.reading.begun_s) if told is not None and told.reading is not None else begun_s


class LooksAtNothing(KubernetesCluster):
    """Answers reads from what its watches have shown."""

    async def _look_at(self, keys: Collection[tuple[str, str]]) -> None:
        del keys


class ForgetsWhatItCouldNotTell(KubernetesCluster):
    """Has nothing to tell after an error."""

    async def refresh(self) -> Batch:
        try:
            return await super().refresh()
        except ClusterUnreachableError:
            self._changed[PODS].clear()
            raise


class ShowsItsStore(KubernetesCluster):
    """Shows what it has not told."""

    def look(self, pod: PodName) -> events.Look:
        self._tell(())
        return super().look(pod)


@dataclass(frozen=True, slots=True)
class ClusterMutant:
    """A broken adapter, the clause that it breaks (others may break too), and the plant where it stands."""

    kind: type[Any]
    clause: str
    plant: str = "watched"

    def planted(self) -> dict[str, Any]:
        """The arguments by which a plant takes the adapter."""
        return {"wrap" if issubclass(self.kind, Wrapped) else "kind": self.kind}


_FILE: Final = "file that goes"
_KUBERNETES: Final = "Kubernetes"
_END: Final = "the_end_of_an_object_is_told_before_another_takes_its_name_and_never_after"
_AGAIN: Final = "what_was_told_is_not_told_again_where_nothing_has_changed"
_MISSING: Final = "begun_s_lies_before_whatever_is_missing"
_LAST: Final = "cluster_read_comes_last_when_everything_before_it_was_told"
_NEW: Final = "is_new_is_what_a_list_after_the_beginning_did_not_hold"
_ERRORS: Final = "errors_leave_what_was_told_in_force_and_lose_nothing"
_READ: Final = "a_read_begins_after_the_call"
MUTANTS: Final = (
    ClusterMutant(TakesWhateverComes, "an_older_description_is_never_told_after_a_newer_one"),
    ClusterMutant(EndsWhateverHasTheName, _END),
    ClusterMutant(TELLS_ENDS_LAST, _END),
    ClusterMutant(TELLS_ENDS_LAST, _END, _FILE),
    ClusterMutant(ForgetsWhatWent, "what_went_does_not_come_back"),
    ClusterMutant(TellsAllAgain, _AGAIN),
    ClusterMutant(TellsAllAgain, _AGAIN, _FILE),
    ClusterMutant(BeginsAnewAfterGaps, _AGAIN),
    ClusterMutant(MissesWhatListsLack, "what_changed_while_nothing_was_shown_is_told"),
    ClusterMutant(DatesEventsAtTheirArrival, _MISSING),
    ClusterMutant(DatesAnswersAtTheirArrival, _MISSING),
    ClusterMutant(TakesAnObjectsVersionForTheStores, "a_read_of_one_object_says_nothing_of_another"),
    ClusterMutant(DatesReadsAtTheirEnd, _MISSING, _FILE),
    ClusterMutant(
        TrustsWhatItFinds, "begun_s_of_sizes_lies_before_the_start_where_nobody_has_written_since", _FILE
    ),
    ClusterMutant(DatesEachAnswerAlone, "begun_s_never_goes_back"),
    ClusterMutant(SAYS_FIRST, _LAST),
    ClusterMutant(SAYS_TOO_SOON, _LAST),
    ClusterMutant(SAYS_TOO_SOON, _LAST, _FILE),
    ClusterMutant(NEVER_SAYS, _LAST, _FILE),
    ClusterMutant(AnswersFromItsView, _READ),
    ClusterMutant(SharesReads, _READ, _FILE),
    ClusterMutant(CallsAllNew, _NEW),
    ClusterMutant(CallsAllNew, _NEW, _FILE),
    ClusterMutant(CALLS_NOTHING_NEW, _NEW),
    ClusterMutant(LosesWhatItHolds, _ERRORS),
    ClusterMutant(HidesErrors, _ERRORS, _FILE),
    ClusterMutant(ShowsNothingAfterErrors, _ERRORS, _FILE),
    ClusterMutant(WaitsForEver, "a_source_that_hangs_is_unreachable_in_time"),
    ClusterMutant(GivesAwayTooSoon, "whoever_gives_up_waiting_costs_no_change", _FILE),
    ClusterMutant(LooksAhead, "look_shows_what_was_told_last"),
    ClusterMutant(LearnsNothingFromOldNews, "any_schedule_keeps_all_of_them"),
    ClusterMutant(TELLS_ENDS_LAST, _END, _KUBERNETES),
    ClusterMutant(TellsAllAgain, _AGAIN, _KUBERNETES),
    ClusterMutant(DatesWhatItTells, _MISSING, _KUBERNETES),
    ClusterMutant(NeverMovesItsMoments, _READ, _KUBERNETES),
    ClusterMutant(SAYS_TOO_SOON, _LAST, _KUBERNETES),
    ClusterMutant(LooksAtNothing, _READ, _KUBERNETES),
    ClusterMutant(CALLS_NOTHING_NEW, _NEW, _KUBERNETES),
    ClusterMutant(CallsAllNew, _NEW, _KUBERNETES),
    ClusterMutant(ForgetsWhatItCouldNotTell, _ERRORS, _KUBERNETES),
    ClusterMutant(HidesErrors, _ERRORS, _KUBERNETES),
    ClusterMutant(ShowsItsStore, "look_shows_what_was_told_last", _KUBERNETES),
)
