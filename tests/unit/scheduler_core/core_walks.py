"""A lively cluster, step by step: what a walk does to a `World`, chosen by its dice and by what the world knows."""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from protocol.reasons import Reason, ReasonCode
from protocol.wire import SlotResources
from scheduler.permits.core import events
from scheduler.permits.core.model import Holder, Kind, PodSpec
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import AGENT, HERE, NEXT_AGENT, World, pod, rules

WHY = Reason(ReasonCode.POOL, "quota: “blue” is used up", "cpu", 1.5)
HOLDERS = [
    *(Holder(kind, "uid-u") for kind in Kind),
    Holder(Kind.VM, "uid-a"),
    Holder(Kind.RESERVATION, "r1"),
]
ANOTHER = UUID(int=99)


def step(world: World, dice: random.Random, ticket: int, now_s: float) -> tuple[events.Output, ...]:
    """One step at `now_s`: a VM comes, or something happens to one. What comes of requests, verdicts and the clock."""
    name = dice.choice("abcd")
    if world.core.vms.find(pod(name)) is None:
        use = dice.choice((cu(1), cu(2), cu(3), None))
        pool = "blue" if name in "ab" else None
        world.vm(name, use, most=cu(5), is_new=dice.random() < 0.6, at=now_s, pool=pool)
        return ()
    weights, acts = zip(*_acts(world, dice, name, ticket, now_s), strict=True)
    (act,) = dice.choices(acts, weights)
    return act() or ()


def _acts(
    world: World, dice: random.Random, name: str, ticket: int, now_s: float
) -> list[tuple[int, Callable[[], Any]]]:
    waiting = next(iter(world.core.state.admission_calls), 0)
    leaving = next((record.spec.uid for record in world.core.vms if record.is_leaving), "nobody")
    agent = dice.choice((AGENT, AGENT, NEXT_AGENT))

    def some() -> Any:
        return cu(dice.randint(1, 5), dice.randint(1, 5))

    def request() -> Any:
        started = 1000 if agent is AGENT else dice.choice((1000, 1000 + ticket))
        claim, names = dice.choice((None, cu(1), cu(2))), dice.choice((HERE, HERE, None, ANOTHER))
        asked = world.request(name, some(), agent=agent, started=started, names=names, claim=claim)
        return world.take(asked, ticket, at=now_s)

    def published() -> Any:
        slots = SlotResources(dice.randint(1, 5), dice.randint(1, 5))
        return world.take_published(name, slots, ticket, at=now_s, use=cu(dice.randint(1, 3)))

    def verdict() -> Any:
        said = dice.choice((None, events.PoolVerdict(), events.PoolVerdict(2, WHY)))
        return world.pool_says(waiting, said, at=now_s)

    def read() -> None:
        world.read(name, cu(dice.randint(1, 4)), at=now_s, target=dice.choice((None, some())))

    def pod_changes() -> None:
        world.other_pod("filler", cu(dice.randint(0, 9)))

    def pod_is_bound() -> None:
        world.other_pod("u", some(), reservation=dice.choice((None, "r1")))

    def assumed() -> tuple[events.Output, ...]:
        pool, reservation = dice.choice((None, "blue", "red")), dice.choice((None, "r1"))
        holder, until_s = dice.choice(HOLDERS), now_s + 20
        return (world.assume(holder, some(), until=until_s, at=now_s, pool=pool, reservation=reservation),)

    def reserved() -> None:
        amount, node = some(), dice.choice(("n1", "n1", "n9", ""))
        ends, once = dice.random() < 0.2, dice.random() < 0.5
        world.reserve(amount, node=node, has_ended=ends, allocate_once=once)

    def switched() -> None:
        world.configure(rules(watermark=0.4, migration=True, system=cu(dice.randint(0, 4))))

    return [
        (6, request),
        (3, published),
        (3, verdict),
        (3, lambda: world.ticked(now_s)),
        (1, lambda: world.apply(events.CpusHeld(f"uid-{name}", dice.choice((None, 1000)), "so it is"))),
        (2, lambda: world.apply(dice.choice((events.MigrationStarted, events.MigrationEnded))(leaving))),
        (1, lambda: world.apply(events.MigrationFailed(leaving, now_s + 10))),
        (3, assumed),
        (2, pod_is_bound),
        (1, lambda: world.apply(events.PodGone(PodSpec(pod("u"), "uid-u", "n1", cu(1))))),
        (1, reserved),
        (1, lambda: world.apply(events.ReservationGone("r1"))),
        (1, lambda: world.apply(events.PlacementConfirmed(dice.choice(HOLDERS)))),
        (1, lambda: world.apply(events.PlacementForgotten(dice.choice(HOLDERS)))),
        (2, read),
        (1, lambda: world.apply(events.VmGone(pod(name), f"uid-{name}", now_s))),
        (1, pod_changes),
        (1, switched),
    ]
