"""Laws of a full node that negotiates, computed from what agents told and from the rows of the ledger.

- *Offers.* Room that is offered to a VM in need is there, is kept for it, and is told once. It ends `OFFER_S` after it was offered unless
  its agent has asked. Nobody of lower priority gets room that one of higher priority needs and could use, and room that is there is
  offered to somebody whom it helps.
- *Yields.* Nobody is asked who cannot take part, is at rest (but for the one that it has just given to), has not answered yet, or for more than its agent told that it can give; one in
  need gives no comfort. Together they are asked for no step more than what the waiter lacks. A node has one open negotiation for each resource, and each
  ends. The VMs of a quota that has to give back are asked for no step more than what is too much, beside what any of them was asked for already.

Need is taken for certain only where the node's room alone has cut a request. None of the core's own judgement is used.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources, amount_of
from protocol.wire import AgentRequest
from tests.machines.core_port import (
    OFFER_S,
    REST_S,
    UNIT,
    YIELD_S,
    Answer,
    Ask,
    Ended,
    Hint,
    LookWanted,
    Offer,
    Permitted,
    Standing,
    Waits,
    vm_holder,
)
from tests.machines.ledger_observer import LawBrokenError
from tests.machines.permit_laws import Reached, owed

if TYPE_CHECKING:
    from tests.machines.core_port import CorePort

HEARD_S: Final = 35.0
GOES_ON_S: Final = 20.0
_FOR_ROOM: Final = {ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS}


@dataclass(slots=True, eq=False)
class Talk:
    """The last words of a VM's agent, and what it was told since. `needed` is what it waits for if it `is_denied`."""

    uid: str
    heard_s: float = 0.0
    priority: int = 0
    spare: Resources = ZERO
    spare_to_higher: Resources = ZERO
    step: Resources = UNIT
    is_apart: bool = False
    needed: Resources = ZERO
    is_denied: bool = False
    offered: Resources = ZERO
    kept: Resources = ZERO
    offered_until_s: float | None = None
    asked: Ask | None = None
    asked_s: float = -REST_S
    is_open: bool = False
    lacked: frozenset[str] = frozenset()


class NegotiationLaws:
    """The laws for one scheduler process. Raises `LawBrokenError`."""

    def __init__(self, port: "CorePort", reached: "Counter[Reached]") -> None:
        self._port = port
        self._reached = reached
        self._talks: dict[str, Talk] = {}
        self._excess = ZERO
        """The amount that a quota has to give back, without what its VMs were asked for before."""

    # ------------------------------------------------------------ what agents say

    def heard(self, uid: str, now_s: float) -> None:
        """An agent's request was taken, if perhaps not for the first time."""
        talk = self._talks.setdefault(uid, Talk(uid))
        if now_s - talk.heard_s >= HEARD_S:
            talk.is_denied = False  # it waits from its next new request on
        talk.heard_s = now_s

    def answered(self, request: AgentRequest, answer: Answer | LookWanted | Waits) -> None:
        """A request was answered with a permit for the first time, or waits for its pool."""
        extension = request.extension
        assert extension is not None
        talk = self._talks[extension.pod_uid]
        given = ((extension.last_permit or ZERO) - extension.resources).max(ZERO)
        talk.priority = extension.priority or 0
        talk.spare = ((extension.spare or ZERO) - given).max(ZERO)
        talk.spare_to_higher = ((extension.spare_to_higher or ZERO) - given).max(ZERO)
        if isinstance(answer, Permitted):
            talk.is_apart, talk.step = answer.is_apart, self._port.step(talk.uid)
            if answer.is_unsettled:
                return
        talk.offered, talk.offered_until_s, talk.is_denied = ZERO, None, False
        standing = self._port.standing(talk.uid)
        if not isinstance(answer, Permitted) or standing is None:
            return
        wanted = extension.resources.min(answer.permit.max(standing.bounds.max))
        talk.needed = wanted.min((extension.need or wanted).max(answer.permit))
        talk.is_denied = ReasonCode.NODE_HEADROOM in answer.codes and _FOR_ROOM.issuperset(answer.codes)

    def quota_exceeded(self, excess: Resources, uids: Sequence[str]) -> None:
        """The VMs of a quota hold too much, of which they may be asked for a part by now."""
        promised = {"cpu": 0, "memory": 0}
        for uid in uids:
            talk, has = self._talks.get(uid), self._port.reserved(vm_holder(uid))
            if talk is None or talk.asked is None or not talk.is_open:
                continue
            for name, amount in talk.asked.amount.named():
                if amount:
                    promised[name] += max(amount_of(has - talk.asked.keep, name), 0)
        self._excess = (excess - Resources(promised["cpu"], promised["memory"])).max(ZERO)

    # ------------------------------------------------------------ what the scheduler says

    def applied(self, hints: Sequence[Hint], now_s: float) -> None:
        """After any input."""
        for talk in tuple(self._talks.values()):
            if self._port.knows(talk.uid):
                self._note_lapse(talk)
            else:
                del self._talks[talk.uid]
        for hint in hints:
            if isinstance(hint, Ended):
                self._ended(self._talk(hint.uid))
        offers = [hint for hint in hints if isinstance(hint, Offer)]
        for place, offer in enumerate(offers):
            self._check_offer(offer, offers[place:], now_s)
            talk = self._talk(offer.uid)
            talk.offered, talk.kept = offer.amount, self._port.offered(talk.uid)
            if talk.kept != ZERO:
                talk.offered_until_s = now_s + OFFER_S
        self._check_room_is_offered(now_s)
        asks = [hint for hint in hints if isinstance(hint, Ask)]
        for _, batch in groupby(asks, key=lambda ask: ask.beneficiary):
            self._check_asks(list(batch), now_s)

    def _talk(self, uid: str) -> Talk:
        talk = self._talks.get(uid)
        if talk is None:
            raise LawBrokenError(f"{uid} is told something, and its agent was never heard")
        return talk

    def _ended(self, talk: Talk) -> None:
        if not talk.is_open or talk.asked is None:
            raise LawBrokenError(f"a negotiation with {talk.uid} ends that never began")
        talk.is_open = False
        standing = self._port.standing(talk.uid)
        is_given = standing is not None and standing.current.fits_in(talk.asked.keep)
        self._reached[Reached.YIELD_GIVEN if is_given else Reached.YIELD_REFUSED] += 1

    def _note_lapse(self, talk: Talk) -> None:
        if talk.offered_until_s is not None and self._port.offered(talk.uid) == ZERO:
            talk.offered_until_s, talk.is_denied = None, False
            self._reached[Reached.OFFER_LAPSED] += 1

    def ticked(self, now_s: float) -> None:
        """The scheduler has looked at its clock."""
        for talk in self._talks.values():
            if self._port.offered(talk.uid) != ZERO and now_s >= (talk.offered_until_s or 0.0):
                raise LawBrokenError(
                    f"{talk.offered} is kept for {talk.uid}, whose agent does not come for it"
                )
            if talk.is_open and now_s >= talk.asked_s + YIELD_S:
                raise LawBrokenError(f"{talk.asked} was asked for, and that never ends")

    # ------------------------------------------------------------ offers

    def _needs(self, talk: Talk, now_s: float) -> Standing | None:
        """The VM if it is certain that it waits in need."""
        if not talk.is_denied or now_s - talk.heard_s >= HEARD_S:
            return None
        standing = self._port.standing(talk.uid)
        if standing is None or not standing.may_negotiate:
            return None
        return standing if self._way(talk, standing).exceeds(standing.current) else None

    @staticmethod
    def _way(talk: Talk, standing: Standing) -> Resources:
        return talk.needed.min(standing.current.max(standing.bounds.max))

    def _room(self, talk: Talk, standing: Standing) -> Resources:
        others = self._port.node_reserved(standing.node) - self._port.reserved(vm_holder(talk.uid))
        return self._port.reservable(standing.node) - others

    def _helps(self, talk: Talk, standing: Standing, room: Resources) -> bool:
        way = self._way(talk, standing)
        found = owed(standing.current, way, talk.step, room, apart=talk.is_apart)
        return found.exceeds(standing.current)

    def _check_offer(self, offer: Offer, later: Sequence[Offer], now_s: float) -> None:
        talk, standing = self._talk(offer.uid), self._port.standing(offer.uid)
        who = f"{offer.uid} is offered {offer.amount}"
        if standing is None or not standing.may_negotiate or now_s - talk.heard_s >= HEARD_S:
            raise LawBrokenError(f"{who}, and cannot ask for it")
        if not offer.amount.exceeds(standing.current) or offer.amount.fits_in(talk.offered):
            raise LawBrokenError(f"{who}, of which it has {standing.current} and was told {talk.offered}")
        kept, node = self._kept_before(talk), offer.node
        rises = zip(
            offer.amount.named(),
            kept.named(),
            self._port.node_reserved(node).named(),
            self._port.reservable(node).named(),
            strict=True,
        )
        for (name, new), (_, old), (_, reserved), (_, most) in rises:
            if new > old and reserved > most:
                raise LawBrokenError(f"{who}, and {node} keeps {reserved} of {most} ({name})")
        if self._needs(talk, now_s) is None:
            return
        self._reached[Reached.OFFERED] += 1
        if offer.amount.exceeds(self._port.reserved(vm_holder(offer.uid))):
            raise LawBrokenError(f"{who}, and it is not kept for it")
        for other in self._talks.values():
            there = self._needs(other, now_s) if other.priority > talk.priority else None
            if there is None or there.node != node or other.offered.exceeds(there.current):
                continue
            given = ZERO
            for each in later:
                if each.node == node and self._talk(each.uid).priority < other.priority:
                    given += self._newly_kept(each)
            if self._helps(other, there, self._room(other, there) + given):
                raise LawBrokenError(f"{who}, which {other.uid} of priority {other.priority} needs")
            self._reached[Reached.OUTRANKED] += 1

    def _newly_kept(self, offer: Offer) -> Resources:
        """The amount that an offer has taken of its node, beside an earlier one to the same VM."""
        talk = self._talk(offer.uid)
        return (self._port.reserved(vm_holder(talk.uid)) - self._kept_before(talk)).max(ZERO)

    def _kept_before(self, talk: Talk) -> Resources:
        """The amount that a row keeps without a new offer to its VM."""
        kept = self._port.kept_for_use(vm_holder(talk.uid))
        return kept if talk.offered_until_s is None else kept.max(talk.kept)

    def _check_room_is_offered(self, now_s: float) -> None:
        for talk in self._talks.values():
            standing = self._needs(talk, now_s) if talk.is_denied else None
            if standing is None or talk.offered.exceeds(standing.current):
                continue
            room = self._room(talk, standing)
            if self._helps(talk, standing, room):
                raise LawBrokenError(
                    f"{talk.uid} needs {talk.needed}, has {standing.current}, and is not offered a part of {room}"
                )

    # ------------------------------------------------------------ yields

    def _check_asks(self, batch: Sequence[Ask], now_s: float) -> None:
        if batch[0].beneficiary.pod is None:
            self._check_asks_of_quota(batch, now_s)
            return
        node, waiter = batch[0].node, batch[0].beneficiary.pod
        found = [talk for talk in self._talks.values() if self._is_at(talk, batch[0])]
        if not found:
            raise LawBrokenError(f"{batch} is asked for, and {waiter} never asked for it")
        talk = found[0]
        standing = self._port.standing(talk.uid)
        assert standing is not None
        for ask in batch:
            if self._check_asked(ask, now_s).node != node or ask.uid == talk.uid:
                raise LawBrokenError(f"{ask} is asked for, and cannot help {waiter}")
            self._check_amount(ask, talk, standing, now_s)
        wanted, room = self._way(talk, standing), self._room(talk, standing)
        lacks = {
            name: want - amount_of(room, name)
            for name, want in wanted.named()
            if want > max(amount_of(standing.current, name), amount_of(room, name))
        }
        total = sum((ask.amount for ask in batch), ZERO)
        spared = [self._without_a_step(ask, total) for ask in batch]
        for name, amount in total.named():
            is_by_product = any(not self._talk(ask.uid).is_apart for ask in batch)
            if is_by_product or not amount:
                continue
            if all(amount_of(less, name) >= lacks.get(name, 0) for less in spared):
                raise LawBrokenError(f"{batch}: more is asked for than the {lacks} which {waiter} lacks")
        if all(all(amount_of(less, name) >= lack for name, lack in lacks.items()) for less in spared):
            raise LawBrokenError(f"{batch}: more is asked for than the {lacks} which {waiter} lacks")
        lacked = frozenset(name for name in lacks if amount_of(total, name))
        for other in self._talks.values():
            if (
                other.is_open
                and other.asked is not None
                and other.asked.node == node
                and other.lacked & lacked
            ):
                raise LawBrokenError(f"{batch} is asked for while {other.asked} is open")
        for ask in batch:
            asked = self._talk(ask.uid)
            # Another one of the batch may have answered, for its resource, before this one does.
            asked.lacked = frozenset(name for name in lacked if amount_of(ask.amount, name))
            asked.asked, asked.asked_s, asked.is_open = ask, now_s, True
            self._reached[Reached.YIELD_ASKED] += 1

    def _check_asks_of_quota(self, batch: Sequence[Ask], now_s: float) -> None:
        for ask in batch:
            self._check_asked(ask, now_s)
            talk = self._talk(ask.uid)
            comfort = talk.spare if self._needs(talk, now_s) is None else ZERO
            if ask.amount.exceeds(comfort.max(talk.spare_to_higher)):
                raise LawBrokenError(
                    f"{ask} is asked for, and it can give {talk.spare}, {talk.spare_to_higher}"
                )
        total = sum((ask.amount for ask in batch), ZERO)
        spared = [self._without_a_step(ask, total) for ask in batch]
        if all(self._excess.min(total).fits_in(less) for less in spared):
            raise LawBrokenError(f"{batch}: more is asked for than the {self._excess} that is too much")
        for ask in batch:
            talk = self._talk(ask.uid)
            talk.lacked = frozenset(name for name, amount in ask.amount.named() if amount)
            talk.asked, talk.asked_s, talk.is_open = ask, now_s, True
            self._reached[Reached.QUOTA_ASKED] += 1

    def _is_at(self, talk: Talk, ask: Ask) -> bool:
        standing = self._port.standing(talk.uid)
        return standing is not None and (standing.pod, standing.node) == (ask.beneficiary.pod, ask.node)

    def _without_a_step(self, ask: Ask, total: Resources) -> Resources:
        """The sum if this VM were asked for a step less of each resource."""
        step = self._talk(ask.uid).step
        return total - step.min(ask.amount)

    def _check_asked(self, ask: Ask, now_s: float) -> Standing:
        """A VM that is asked can take part, has rested, and keeps at least its minimum."""
        talk, standing = self._talk(ask.uid), self._port.standing(ask.uid)
        who = f"{ask.uid} is asked for {ask.amount} for {ask.beneficiary}"
        if standing is None or not standing.may_negotiate:
            raise LawBrokenError(f"{who}, and cannot give it")
        if now_s - talk.heard_s >= HEARD_S:
            raise LawBrokenError(f"{who}, and was not heard for long")
        is_at_rest = now_s < talk.asked_s + REST_S and not self._goes_on(talk, ask, standing, now_s)
        if talk.is_open or is_at_rest:
            raise LawBrokenError(f"{who}, and was asked {now_s - talk.asked_s} s ago")
        if standing.bounds.min.min(standing.current).exceeds(ask.keep):
            raise LawBrokenError(f"{who}, and would keep {ask.keep} of at least {standing.bounds.min}")
        if ask.keep + ask.amount != standing.current:
            raise LawBrokenError(f"{who} and to keep {ask.keep}, and has {standing.current}")
        return standing

    def _check_amount(self, ask: Ask, waiter: Talk, there: Standing, now_s: float) -> None:
        talk, standing = self._talk(ask.uid), self._port.standing(ask.uid)
        assert standing is not None
        most = talk.spare if self._needs(talk, now_s) is None else ZERO
        if waiter.priority >= talk.priority:
            higher = talk.spare_to_higher
            if waiter.priority == talk.priority:
                more = (standing.current - there.current).max(ZERO)
                higher = higher.min(Resources(more.vcpu_milli // 2, more.memory_bytes // 2))
            most = most.max(higher)
        if ask.amount.exceeds(most):
            raise LawBrokenError(f"{ask} is asked for, and {most} is what it can give to that VM")

    @staticmethod
    def _goes_on(talk: Talk, ask: Ask, standing: Standing, now_s: float) -> bool:
        """Whether the VM has just given for the same one all that it was asked for: it may be asked for more."""
        before = talk.asked
        if before is None or before.beneficiary.quota != ask.beneficiary.quota:
            return False
        if before.beneficiary.pod != ask.beneficiary.pod or now_s >= talk.asked_s + GOES_ON_S:
            return False
        amounts = zip(before.amount.named(), before.keep.named(), standing.current.named(), strict=True)
        return all(not amount or has <= keep for (_, amount), (_, keep), (_, has) in amounts)
