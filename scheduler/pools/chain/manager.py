"""The chain: plugins in the order of the configuration, each bounded in time, none able to break what is around it; and the search for
the number of replicas that it admits.

Source: seed 000, `PluginManager` and `ProbeAcceptedReplicas`; time-outs and a barrier for exceptions are added here.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

from hosting.logs import Logger
from hosting.registry import at_once, is_text
from protocol.values import Resources
from scheduler.pools.chain import calls
from scheduler.pools.chain.calls import AbandonedCalls, Call, PoolStats, Steps
from scheduler.pools.chain.plugin import Handle, Plugin
from scheduler.pools.core import probe, validation
from scheduler.pools.core.errors import AppError, Interrupt, new_internal
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import (
    ADMITTED,
    POD_ADMITTED,
    Admission,
    Context,
    Excess,
    PodAdmission,
    PodManifest,
    Pods,
    Pool,
    ProbeEnd,
    Purpose,
    merged,
)

PLUGIN_TIMEOUT_S: Final = 0.5
START_TIMEOUT_S: Final = 30.0
"""For `start` and `stop` of one plugin: they may open connections and read catalogues."""


class PluginStartError(Exception):
    """A plugin did not start. The text names it."""


class PluginManager:
    """An ordered chain of plugins. Without any, every hook admits at once, and `bool(manager)` is False.

    `names` are what they are called in the place of their own names, in the same order; an empty one changes nothing.
    """

    def __init__(
        self,
        *plugins: Plugin,
        names: Sequence[str] = (),
        timeout_s: float = PLUGIN_TIMEOUT_S,
        log: Logger | None = None,
        watch: PoolStats | None = None,
    ) -> None:
        self._plugins = tuple(
            (name or _name(plugin), plugin, AbandonedCalls())
            for name, plugin in zip(names or [""] * len(plugins), plugins, strict=True)
        )
        self._timeout_s = timeout_s
        self._log = log
        self._watch = watch
        self._listeners = self._optional("probe_ended")
        self._amounts = self._optional("limits_amounts")
        self._shares = self._optional("excesses")
        self._started = 0
        self._awaited: set[str] = set()

    def _optional(self, hook: str) -> tuple[tuple[str, Callable[..., Any]], ...]:
        """The plugins' names with a hook that not every plugin has."""
        found = ((name, getattr(plugin, hook, None)) for name, plugin, _ in self._plugins)
        return tuple((name, call) for name, call in found if callable(call))

    def __bool__(self) -> bool:
        return bool(self._plugins)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, *_ in self._plugins)

    @property
    def has_listeners(self) -> bool:
        """Whether any plugin wants to know what became of a search."""
        return bool(self._listeners)

    @property
    def abandoned(self) -> int:
        """Calls that were given up and still run."""
        return sum(abandoned.count() for *_, abandoned in self._plugins)

    def is_awaited(self, plugin: str) -> bool:
        """Whether a plugin of that name has ever had to be waited for, so that its answer is not to be had at once."""
        return plugin in self._awaited

    async def start(self, handle: Handle) -> None:
        """Start every plugin in order. Raises `PluginStartError` at the first that fails; the later ones are not started."""
        self._started = 0
        for name, plugin, abandoned in self._plugins:
            try:
                await _awaited(at_once(plugin.start, handle), abandoned)
                self._started += 1
            except Exception as error:
                text = str(error) or repr(error)
                raise PluginStartError(f'plugin "{name}" start: {text}') from error

    async def stop(self) -> None:
        """Stop every plugin, the last first. Errors are logged; the others are stopped all the same."""
        await self._stop(self._plugins)

    async def stop_started(self) -> None:
        """Stop those plugins that have started, of a chain that has not as a whole."""
        await self._stop(self._plugins[: self._started])

    async def _stop(self, plugins: tuple[tuple[str, Plugin, AbandonedCalls], ...]) -> None:
        for name, plugin, abandoned in reversed(plugins):
            try:
                await _awaited(at_once(plugin.stop), abandoned)
            except Exception as error:  # noqa: BLE001 - one that fails must not keep the others from ending
                if self._log is not None:
                    self._log.warning("pool plugin did not stop", plugin=name, error=repr(error))

    async def pre_create_pool(self, ctx: Context, pool: Pool) -> Admission:
        return await calls.run(self._chain("pre_create_pool", ctx, pool))

    async def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        return await calls.run(self.update_steps(ctx, new_pool, pods))

    async def pre_delete_pool(self, ctx: Context, pool: Pool) -> Admission:
        return await calls.run(self._chain("pre_delete_pool", ctx, pool))

    async def pre_create_pod_hooks(self, ctx: Context, pod: PodManifest, pool: Pool) -> PodAdmission:
        """Call the pod's hook of every plugin until one refuses. Each sees what the ones before changed."""
        return await calls.run(self._pod_chain(ctx, pod, pool))

    def statuses(self) -> list[tuple[str, object]]:
        """The status of each plugin, by name; None for a plugin whose `status()` is not there, or fails."""
        return [(name, _status_of(plugin)) for name, plugin, *_ in self._plugins]

    def update_steps(self, ctx: Context, new_pool: Pool, pods: Pods) -> Steps[Admission]:
        """`pre_update_pool` as steps, for callers that wait only where they must."""
        return self._chain("pre_update_pool", ctx, new_pool, tuple(pods))

    def still_admits(self, ctx: Context, new_pool: Pool, pods: Pods) -> bool:
        """Whether the plugins that only compute admit `new_pool` now, without waiting for anything.

        For a grant about to be made after others were made meanwhile: two pools must not both get what is left of one
        quota. The word of plugins that wait still counts.
        """
        for place, (_, plugin, _) in enumerate(self._plugins):
            if inspect.iscoroutinefunction(plugin.pre_update_pool):
                continue
            steps = self._call(place, "pre_update_pool", Admission, ctx, new_pool, tuple(pods))
            own, call = calls.begin(steps)
            if call is not None:
                calls.drop(steps, call)
            elif own is None or own.error is not None or not own.admits(new_pool):
                return False
        return True

    def limits_amounts(self, pool: Pool) -> bool:
        """Whether any plugin limits amounts of that pool beside units (`limits_amounts`, which is optional).

        A plugin that cannot tell is asked about all growth, so that no limit is passed over.
        """
        for name, hook in self._amounts:
            try:
                if at_once(hook, pool):
                    return True
            except Exception as error:  # noqa: BLE001 - anybody may write a plugin
                if self._log is not None:
                    self._log.warning(
                        "pool plugin failed", plugin=name, hook="limits_amounts", error=repr(error)
                    )
                return True
        return False

    def probe_ended(self, end: ProbeEnd) -> None:
        """Tell the plugins that want to know (`probe_ended`, which is optional) what became of a search."""
        for _ in self._heard("probe_ended", self._listeners, end):
            pass

    def excesses(self) -> Iterator[Excess]:
        """The pools that hold more than their share, as the plugins say that know (`excesses`, which is optional)."""
        for found in self._heard("excesses", self._shares, read=_excesses):
            yield from found

    def _heard(
        self,
        hook: str,
        calls_: Sequence[tuple[str, Callable[..., Any]]],
        *args: object,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Iterator[Any]:
        """The answers of a hook that not every plugin has; one that fails, or whose answer cannot be `read`, gives none."""
        for name, call in calls_:
            try:
                answer = read(at_once(call, *args))
            except Exception as error:  # noqa: BLE001 - anybody may write a plugin
                if self._log is not None:
                    self._log.warning("pool plugin failed", plugin=name, hook=hook, error=repr(error))
            else:
                yield answer

    # ------------------------------------------------------------ one hook over the chain

    def _chain(self, hook: str, ctx: Context, pool: Pool, *more: object) -> Steps[Admission]:
        """The fold: a later plugin sees what earlier ones changed; the first error ends it.

        `pool` of the result is the changed pool, where it differs from the given one, also beside an error.
        """
        found, seen = ADMITTED, pool
        for place, (name, *_) in enumerate(self._plugins):
            own = yield from self._call(place, hook, Admission, ctx, seen, *more)
            if own.pool is not None:
                seen = own.pool
            if own is not ADMITTED:
                found = merged(found, own, name)
            if own.error is not None:
                break
        if found.pool is not None and found.pool == pool:
            return replace(found, pool=None)
        return found

    def _pod_chain(self, ctx: Context, pod: PodManifest, pool: Pool) -> Steps[PodAdmission]:
        found, seen = POD_ADMITTED, pod
        for place, (name, *_) in enumerate(self._plugins):
            # A manifest can be changed in place: each plugin gets a copy of its own.
            own = yield from self._call(place, "pre_create_pod", PodAdmission, ctx, copy.deepcopy(seen), pool)
            if own.pod is not None:
                seen = own.pod
                found = replace(found, pod=seen)
            if own.error is not None:
                return replace(found, error=own.error, plugin=name)
        return found

    def _call(
        self, place: int, hook: str, kind: type[Any], ctx: Context, seen: Any, *more: object
    ) -> Steps[Any]:
        """One hook of one plugin. Whatever the plugin does, the result is an answer of `kind`; only cancellation passes through."""
        name, plugin, abandoned = self._plugins[place]
        about = next(each.name for each in (seen, *more) if isinstance(each, Pool))
        began_s = perf_counter() if self._watch is not None else 0.0
        cause: BaseException | None = None
        try:
            if abandoned.is_full(about):
                raise RuntimeError(
                    f"{calls.MAX_ABANDONED} earlier calls about pool {about} have not ended yet"
                )
            answer = at_once(getattr(plugin, hook), ctx, seen, *more)
            if inspect.isawaitable(answer):
                self._awaited.add(name)
                answer = yield Call(answer, self._timeout_s, abandoned, about)
            answer = validation.sound(answer, kind, seen, hook)
            if isinstance(answer, PodAdmission) and answer.pod is not None:
                # The plugin may keep its manifest and go on changing it.
                answer = replace(answer, pod=copy.deepcopy(answer.pod))
        except AppError as refusal:
            # One error may be raised for every call: its traceback would grow each time, and keep every frame.
            answer = kind(error=refusal.with_traceback(None))
            problem = validation.error_problem(refusal)
            if problem:
                cause = ValueError(problem)
                answer = kind(error=new_internal(f"{name} failed", cause))
        except calls.LateError as error:
            cause = error
            answer = kind(error=new_internal(f"{name} did not answer within {self._timeout_s:g} s", error))
        except Exception as error:  # noqa: BLE001 - a plugin's failure is an answer: Internal
            cause = error
            answer = kind(error=new_internal(f"{name} failed", error))
        if cause is not None and self._log is not None:
            trace = (
                None if isinstance(cause, calls.LateError) else cause
            )  # where it waited is of no use to anybody
            self._log.warning("pool plugin failed", plugin=name, hook=hook, error=repr(cause), exc_info=trace)
        elif answer.error is not None and answer.error.cause is not None and self._log is not None:
            self._log.debug("pool plugin refused", plugin=name, hook=hook, error=repr(answer.error.cause))
        if self._watch is not None:
            self._watch.called(name, hook, answer.error, perf_counter() - began_s)
        return answer


def new_plugin_manager(*plugins: Plugin, **options: Any) -> PluginManager | None:
    """A manager of the given plugins; None without any. Source: seed 000, `NewPluginManager`."""
    return PluginManager(*plugins, **options) if plugins else None


def _status_of(plugin: Plugin) -> object:
    show = getattr(plugin, "status", None)
    try:
        return at_once(show) if callable(show) else None
    except Exception:  # noqa: BLE001 - anybody may write a plugin; what it shows is for people only
        return None


async def _awaited(answer: object, abandoned: AbandonedCalls) -> None:
    if inspect.isawaitable(answer):
        await calls.run(_one(Call(answer, START_TIMEOUT_S, abandoned)))


def _one(call: Call) -> Steps[object]:
    return (yield call)


def _name(plugin: Plugin) -> str:
    name = at_once(plugin.name)
    if not is_text(name):
        raise ValueError(f"{type(plugin).__name__}.name() must be a text and not empty, not {name!r}")
    return str(name)


def probe_steps(
    manager: PluginManager,
    ctx: Context,
    pool: Pool,
    pods: Pods,
    bounds: tuple[int, int],
    clock: Callable[[], float] | None = None,
    amount: Resources | None = None,
) -> Steps[ProbeResult]:
    """A search within `bounds` (current, candidate) that asks `manager`. Changes by plugins are dropped.

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


def _excesses(answer: Any) -> tuple[Excess, ...]:
    """Raises `TypeError`."""
    found = tuple(answer)
    if not all(isinstance(each, Excess) for each in found):
        raise TypeError(f"excesses must be a list of Excess, not {answer!r}")
    return found
