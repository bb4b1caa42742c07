"""The search for what a chain admits, asked of a real chain. Source: seed 000, `ProbeAcceptedReplicas`."""

from collections.abc import Callable

from protocol.values import Resources
from scheduler.pools.chain import calls
from scheduler.pools.chain.calls import Steps
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.core import probe
from scheduler.pools.core.errors import Interrupt
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import Context, Pods, Pool, Purpose


def probe_steps(
    manager: PluginManager,
    ctx: Context,
    pool: Pool,
    pods: Pods,
    bounds: tuple[int, int],
    clock: Callable[[], float] | None = None,
    amount: Resources | None = None,
) -> Steps[ProbeResult]:
    """A search within `bounds` (current, candidate) that asks `manager`. What a plugin changes is dropped.

    With an `amount`, the chain is asked about that as well, as far as the units of each question can hold it.

    It ends with what is known when an `Interrupt` is thrown in, or, with a `clock`, when that reaches `ctx.deadline_s`.
    """
    searching = probe.search(*bounds)
    try:
        asked = next(searching)
        while True:
            try:
                answer = yield from manager.update_steps(ctx, about(pool, asked, amount), pods)
            except Interrupt as over:
                searching.throw(over)
                raise AssertionError("the search goes on after its end") from None
            asked = searching.send(answer)
            if clock is not None and ctx.deadline_s is not None and clock() >= ctx.deadline_s:
                searching.throw(Interrupt())
    except StopIteration as stop:
        result: ProbeResult = stop.value
        return (
            result
            if amount is None
            else probe.about_amount(result, about(pool, result.accepted, amount).amount)
        )


def about(pool: Pool, units: int, amount: Resources | None) -> Pool:
    """The pool as it is asked about: with so many units, and what these can hold of `amount`, where amounts are limited."""
    if amount is None:
        return pool.with_replicas(units)
    return pool.with_replicas(units, amount.min(pool.compute_unit * units))


async def probe_accepted_replicas(
    manager: PluginManager | None,
    pool: Pool,
    pods: Pods,
    current: int,
    candidate: int,
    ctx: Context | None = None,
) -> ProbeResult:
    """The largest number of replicas in [current, candidate] that the chain admits. Source: seed 000.

    Without a manager, or one without plugins, the candidate is accepted without a call; where the candidate is not above
    `current`, that is. `ctx` is what the plugins are told of the call.
    """
    if candidate <= current or not manager:
        return ProbeResult(ProbeResultKind.OK, max(current, candidate))
    asking = ctx if ctx is not None else Context(Purpose.PROBE)
    return await calls.run(probe_steps(manager, asking, pool, pods, (current, candidate)))
