"""The chain: plugins in the order of the configuration, each bounded in time, none able to break what is around it.

Source: seed 000, `PluginManager`; what it lacks (time-outs, a barrier for exceptions) is added here.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Protocol

from hosting.logs import Logger
from scheduler.pool import calls
from scheduler.pool.calls import Call, Steps, Strays
from scheduler.pool.errors import AppError, detail_of, new_internal
from scheduler.pool.plugin import Handle, Plugin
from scheduler.pool.values import (
    ADMITTED,
    POD_ADMITTED,
    Admission,
    Context,
    PodAdmission,
    PodManifest,
    Pods,
    Pool,
    merged,
)

PLUGIN_TIMEOUT_S: Final = 0.5
START_TIMEOUT_S: Final = 30.0
"""For `start` and `stop` of one plugin: they may open connections and read catalogues."""


class PluginStartError(Exception):
    """A plugin did not start. The text names it."""


class Watch(Protocol):
    """Is told of every call; for metrics."""

    def called(self, plugin: str, hook: str, error: AppError | None, seconds: float) -> None:
        """A hook has answered; `error` is its refusal."""
        ...


class PluginManager:
    """An ordered chain of plugins. Without any, every hook admits at once, and `bool(manager)` is False."""

    def __init__(
        self,
        *plugins: Plugin,
        timeout_s: float = PLUGIN_TIMEOUT_S,
        log: Logger | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._plugins = tuple((_name(plugin), plugin) for plugin in plugins)
        self._timeout_s = timeout_s
        self._log = log
        self._watch = watch
        self._strays = Strays()

    def __bool__(self) -> bool:
        return bool(self._plugins)

    @property
    def names(self) -> tuple[str, ...]:
        """The plugins' names in their order."""
        return tuple(name for name, _ in self._plugins)

    @property
    def strays(self) -> int:
        """Calls that were given up and still run."""
        return self._strays.count()

    async def start(self, handle: Handle) -> None:
        """Start every plugin in order. Raises `PluginStartError` at the first that fails; the later ones are not started."""
        for name, plugin in self._plugins:
            try:
                await self._await(name, plugin.start(handle))
            except Exception as error:
                text = str(error) or repr(error)
                raise PluginStartError(f'plugin "{name}" start: {text}') from error

    async def stop(self) -> None:
        """Stop every plugin, the last one first. What one raises is logged; the others are stopped all the same."""
        for name, plugin in reversed(self._plugins):
            try:
                await self._await(name, plugin.stop())
            except Exception as error:  # noqa: BLE001 - one that fails must not keep the others from ending
                if self._log is not None:
                    self._log.warning("pool plugin did not stop", plugin=name, error=repr(error))

    async def _await(self, name: str, answer: object) -> None:
        if inspect.isawaitable(answer):
            await calls.run(_one(Call(name, answer, START_TIMEOUT_S, self._strays)))

    async def pre_create_pool(self, ctx: Context, pool: Pool) -> Admission:
        """Call the hook of every plugin until one refuses."""
        return await calls.run(self._chain("pre_create_pool", ctx, pool))

    async def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> Admission:
        """Call the hook of every plugin until one refuses."""
        return await calls.run(self.update_steps(ctx, new_pool, pods))

    async def pre_delete_pool(self, ctx: Context, pool: Pool) -> Admission:
        """Call the hook of every plugin until one refuses."""
        return await calls.run(self._chain("pre_delete_pool", ctx, pool))

    async def pre_create_pod_hooks(self, ctx: Context, pod: PodManifest, pool: Pool) -> PodAdmission:
        """Call the pod's hook of every plugin until one refuses. Each sees what the ones before changed."""
        return await calls.run(self._pod_chain(ctx, pod, pool))

    def update_steps(self, ctx: Context, new_pool: Pool, pods: Pods) -> Steps[Admission]:
        """`pre_update_pool` as steps, for whoever wants to wait only where it must."""
        return self._chain("pre_update_pool", ctx, new_pool, pods)

    # ------------------------------------------------------------ one hook over the chain

    def _chain(self, hook: str, ctx: Context, pool: Pool, *more: object) -> Steps[Admission]:
        """The fold: a later plugin sees what earlier ones changed; the first error ends it.

        `pool` of the result is the changed pool, where it differs from the given one, also beside an error.
        """
        found, seen = ADMITTED, pool
        for name, plugin in self._plugins:
            own = yield from self._call(name, hook, Admission, getattr(plugin, hook), ctx, seen, *more)
            if own.pool is not None:
                own = _checked(own, seen, hook)
                seen = own.pool if own.pool is not None else seen
            if own is not ADMITTED:
                found = merged(found, own, name)
            if own.error is not None:
                break
        if found.pool is not None and found.pool == pool:
            return replace(found, pool=None)
        return found

    def _pod_chain(self, ctx: Context, pod: PodManifest, pool: Pool) -> Steps[PodAdmission]:
        found, seen = POD_ADMITTED, pod
        for name, plugin in self._plugins:
            own = yield from self._call(
                name, "pre_create_pod", PodAdmission, plugin.pre_create_pod, ctx, seen, pool
            )
            if own.pod is not None:
                seen = own.pod
                found = replace(found, pod=seen)
            if own.error is not None:
                return replace(found, error=own.error, plugin=name)
        return found

    def _call(
        self, name: str, hook: str, kind: type[Any], function: Callable[..., object], *arguments: object
    ) -> Steps[Any]:
        """One hook of one plugin. Whatever it does, an answer of `kind` comes of it; only cancellation passes through."""
        began_s = perf_counter() if self._watch is not None else 0.0
        cause: BaseException | None = None
        try:
            if self._strays.is_full(name):
                raise RuntimeError(f"{calls.MAX_STRAYS} earlier calls have not ended yet")
            answer = function(*arguments)
            if inspect.isawaitable(answer):
                answer = yield Call(name, answer, self._timeout_s, self._strays)
            if not isinstance(answer, kind):
                raise TypeError(f"a hook gives {kind.__name__}, not {type(answer).__name__}")
            problem = _problem(answer)
            if problem:
                raise ValueError(problem)
        except AppError as refusal:
            answer = kind(error=refusal)
            problem = _problem(answer)
            if problem:
                cause = ValueError(problem)
                answer = kind(error=new_internal(f"{name} failed", cause))
        except TimeoutError as error:
            cause = error
            answer = kind(error=new_internal(f"{name} did not answer within {self._timeout_s:g} s", error))
        except Exception as error:  # noqa: BLE001 - a plugin's failure is an answer: Internal
            cause = error
            answer = kind(error=new_internal(f"{name} failed", error))
        if cause is not None and self._log is not None:
            self._log.warning("pool plugin failed", plugin=name, hook=hook, error=repr(cause))
        elif answer.error is not None and answer.error.cause is not None and self._log is not None:
            self._log.debug("pool plugin refused", plugin=name, hook=hook, error=repr(answer.error.cause))
        if self._watch is not None:
            self._watch.called(name, hook, answer.error, perf_counter() - began_s)
        return answer


def new_plugin_manager(*plugins: Plugin, **options: Any) -> PluginManager | None:
    """A manager of the given plugins; None without any. Source: seed 000, `NewPluginManager`."""
    return PluginManager(*plugins, **options) if plugins else None


def _one(call: Call) -> Steps[object]:
    return (yield call)


def _name(plugin: Plugin) -> str:
    name = plugin.name()
    if not name:
        raise ValueError(f"{type(plugin).__name__}.name() must not be empty")
    return name


def _checked(own: Admission, seen: Pool, hook: str) -> Admission:
    """What a plugin may change: labels, annotations, finalizers, and, but for a deletion, unit and limits."""
    assert own.pool is not None
    kept = replace(
        own.pool,
        name=seen.name,
        uid=seen.uid,
        generation=seen.generation,
        replicas=seen.replicas,
        is_deleting=seen.is_deleting,
    )
    if hook == "pre_delete_pool":
        kept = replace(kept, compute_unit=seen.compute_unit, limits=seen.limits)
    if kept != own.pool:
        refusal = new_internal("a plugin changed what is not a plugin's to change, such as replicas")
        return replace(own, pool=None, error=own.error or refusal)
    return own


def _problem(answer: Any) -> str:
    """What is wrong with an answer; anybody may write a plugin."""
    if answer.error is not None:
        if not isinstance(answer.error, AppError):
            return f"error must be an AppError, not {type(answer.error).__name__}"
        problem = _wait_problem(detail_of(answer.error).retry_after_s)
        if problem:
            return problem
    if isinstance(answer, PodAdmission) or answer is ADMITTED:
        return ""
    cap = answer.admitted
    if cap is not None and (type(cap) is not int or cap < 0):
        return f"admitted must be a whole number from 0, not {cap!r}"
    problem = _wait_problem(answer.retry_after_s)
    if problem:
        return problem
    if answer.pool is not None and not isinstance(answer.pool, Pool):
        return f"pool must be a Pool, not {type(answer.pool).__name__}"
    if not (isinstance(answer.reason, str) and isinstance(answer.message, str)):
        return "reason and message must be texts"
    return ""


def _wait_problem(wait_s: Any) -> str:
    if wait_s is None or (isinstance(wait_s, int | float) and 0 <= wait_s < float("inf")):
        return ""
    return f"retry_after_s must be a number of seconds from 0, not {wait_s!r}"
