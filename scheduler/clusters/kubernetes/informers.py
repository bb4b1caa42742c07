"""Shared informers: one watch of each type that a plugin asks for, while this process leads."""

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.core.known import Change, Changed
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.logs import Logger
from hosting.supervisor import Child
from scheduler.placing.core.informers import InformerHandler, ObjectKey
from scheduler.placing.core.values import ActionType, SchedulingEvent

MAX_INFORMERS: Final = 64
Start: TypeAlias = Callable[[str, Child], None]
"""Runs a child under a name, such as `Supervisor.start`."""
OnEvents: TypeAlias = Callable[[Sequence[SchedulingEvent]], object]


class KubernetesInformers:
    """The watches, each of all objects of its type. `start` runs them; those in `running` are run by others."""

    def __init__(
        self,
        api: KubernetesApi,
        start: Start,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        running: Mapping[ResourceType, Reflector] | None = None,
    ) -> None:
        self._api, self._start, self._clock, self._rng, self._log = api, start, clock, rng, log
        self._running = running or {}
        self._informers: dict[ResourceType, KubernetesInformer] = {}
        self._listeners: list[OnEvents] = []
        self._events: list[SchedulingEvent] = []
        """Those of this turn of the loop."""

    def listen(self, listener: OnEvents) -> None:
        """Call `listener` with the changes of each turn of the loop, once all handlers know of them. It must not wait and must not fail."""
        self._listeners.append(listener)

    def informer(self, type_: ResourceType) -> "KubernetesInformer":
        found = self._informers.get(type_)
        if found is None:
            if len(self._informers) >= MAX_INFORMERS:
                raise ValueError(
                    f"plugins watch {MAX_INFORMERS} types already; {type_.plural} would be one more"
                )
            watch = self._running.get(type_) or self._started(type_)
            found = self._informers[type_] = KubernetesInformer(watch, type_, self._told, self._log)
        return found

    def _started(self, type_: ResourceType) -> Reflector:
        watch = Reflector(
            self._api,
            type_,
            clock=self._clock,
            rng=self._rng,
            log=self._log,
            is_optional=True,
            may_be_forbidden=True,
        )
        self._start(f"watch of {type_.plural}.{type_.group} for plugins", watch.run)
        return watch

    def _told(self, event: SchedulingEvent) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._tell)
        self._events.append(event)

    def _tell(self) -> None:
        events, self._events = self._events, []
        for listener in self._listeners:
            listener(events)


class KubernetesInformer:
    """The informer of one type. The API server may not know the type, or not let us read it: then there are no objects, until that comes."""

    def __init__(
        self, watch: Reflector, type_: ResourceType, tell: Callable[[SchedulingEvent], object], log: Logger
    ) -> None:
        self._watch, self._type, self._tell, self._log = watch, type_, tell, log
        self._handlers: list[InformerHandler] = []
        watch.follow(self._changed)

    @property
    def has_synced(self) -> bool:
        return self._watch.has_synced or self._watch.is_missing

    def objects(self) -> Mapping[ObjectKey, Manifest]:
        return self._watch.objects()

    def add_event_handler(self, handler: InformerHandler) -> None:
        if inspect.iscoroutinefunction(handler):
            raise ValueError("an event handler is a coroutine function, and nobody waits for its answer")
        self._handlers.append(handler)
        for manifest in list(self._watch.objects().values()):
            self._call(handler, None, manifest)

    def remove_event_handler(self, handler: InformerHandler) -> None:
        if handler in self._handlers:
            self._handlers.remove(handler)

    def _changed(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, Changed):
                before, after = change.previous, change.manifest
                action = ActionType.UPDATE if before is not None else ActionType.ADD
            else:
                before, after, action = change.manifest, None, ActionType.DELETE
            for handler in tuple(self._handlers):
                self._call(handler, before, after)
            self._tell(SchedulingEvent(self._type, action, before, after))

    def _call(self, handler: InformerHandler, before: Manifest | None, after: Manifest | None) -> None:
        try:
            handler(before, after)
        except Exception as error:  # noqa: BLE001 - a plugin's own: whatever it raises
            self._log.error(
                "an event handler of a plugin failed",
                type=self._type.plural,
                error=repr(error),
                exc_info=error,
            )
