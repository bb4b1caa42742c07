"""The states informer: the daemon's loop publishes the states of the node, and strategies read it from their threads. Each callback has a
thread of its own, so that a slow one holds no other up."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Final

from agent.node.qos.core.states import (
    KnownStates,
    NodeState,
    ObjectType,
    PodState,
    ScalingPolicyState,
    VmState,
)
from hosting.logs import Logger
from hosting.registry import error_text
from protocol.pages import StrategyCallback

MAX_CALLBACKS: Final = 64
SLOW_AFTER_S: Final = 10.0
"""A call that runs for so long is reported."""

Callback = Callable[[ObjectType], None]


class RegisteredCallback:
    """One callback with its thread. Changes that come while a call runs are one further call."""

    def __init__(
        self, key: tuple[ObjectType, str], description: str, owner: str, callback: Callback, log: Logger
    ) -> None:
        self.key = key
        self.description = description
        self.owner = owner
        self._callback = callback
        self._log = log
        self._due = threading.Event()
        self._is_closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.calls_total = 0
        self.errors_total = 0
        self.last_error = ""
        self.began_s: float | None = None
        self.is_reported = False

    @property
    def is_over(self) -> bool:
        return self._is_closed and (self._thread is None or not self._thread.is_alive())

    def status(self, now_s: float) -> StrategyCallback:
        object_type, name = self.key
        began_s = self.began_s
        return StrategyCallback(
            objects=object_type.value,
            name=name,
            owner=self.owner or None,
            calls=self.calls_total,
            errors=self.errors_total,
            last_error=self.last_error or None,
            running_seconds=None if began_s is None else round(max(now_s - began_s, 0.0), 1),
        )

    def begin(self, clock: Callable[[], float]) -> None:
        with self._starting:
            if self._thread is None and not self._is_closed:
                title = " ".join(("callback", *self.key))
                thread = threading.Thread(target=self._serve, args=(clock,), name=title, daemon=True)
                thread.start()
                self._thread = thread

    def send(self) -> None:
        """Have the callback called. Never blocks."""
        self._due.set()

    def close(self) -> None:
        """No call begins any more. A call that runs goes on."""
        with self._starting:  # after this, `_thread` is the thread, if there is one
            self._is_closed = True
        self._due.set()

    def join(self, deadline_s: float) -> None:
        """Wait for the end of the thread, unless this is that very thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline_s)

    def _serve(self, clock: Callable[[], float]) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._is_closed:
                return
            self.began_s = clock()
            self._call()
            self.began_s, self.is_reported = None, False

    def _call(self) -> None:
        object_type, name = self.key
        self.calls_total += 1
        try:
            self._callback(object_type)
        except BaseException as error:  # noqa: BLE001 - an error ends this call alone
            self.errors_total += 1
            if (text := error_text(error)) != self.last_error:
                self.last_error = text
                self._log.warning(
                    "callback failed", type=object_type, callback=name, owner=self.owner, error=text
                )


class StateCallbacks:
    """The callbacks of states, by object type and name. Any thread may call every method.

    No callback is called before `begin`, which says that the states are synced; changes before it wait until then.
    """

    def __init__(self, log: Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._callbacks: dict[tuple[ObjectType, str], RegisteredCallback] = {}
        self._sent: set[ObjectType] = set()
        self._has_begun = False

    def register(
        self, object_type: ObjectType, name: str, description: str, callback: Callback, owner: str = ""
    ) -> None:
        """Call `callback` after objects of the type have changed, and once soon if there are any by now.

        Raises `ValueError` for an unknown type, a name that is taken within the type (also by a callback that was
        closed and has not returned yet), and the 65th callback. The first of a name stays.
        """
        try:
            object_type = ObjectType(object_type)
        except ValueError:
            kinds = ", ".join(ObjectType)
            raise ValueError(
                f"callback {name!r}: there is no object type {object_type!r} (there are: {kinds})"
            ) from None
        if not name or not callable(callback):
            raise ValueError(f"callback {name!r} of {object_type}: must have a name and be callable")
        with self._lock:
            self._forget_those_over()
            if (object_type, name) in self._callbacks:
                raise ValueError(f"callback {name!r} of {object_type} is registered already")
            if len(self._callbacks) >= MAX_CALLBACKS:
                raise ValueError(f"callback {name!r} of {object_type}: there are {MAX_CALLBACKS} already")
            added = RegisteredCallback((object_type, name), description, owner, callback, self._log)
            self._callbacks[added.key] = added
            has_begun = self._has_begun
            if object_type in self._sent:
                added.send()
        if has_begun:  # without the lock: `send` never waits for the start of a thread
            added.begin(self._clock)

    def send(self, object_type: ObjectType) -> None:
        with self._lock:
            self._sent.add(object_type)
            for callback in self._callbacks.values():
                if callback.key[0] == object_type:
                    callback.send()

    def begin(self) -> None:
        """The states are synced: calls may begin."""
        with self._lock:
            self._has_begun = True
        for callback in self._all():
            callback.begin(self._clock)

    def close(self, owner: str, deadline_s: float) -> None:
        """End the callbacks of an owner, and wait for the calls that run, `deadline_s` at most for all of them."""
        with self._lock:
            closed = [each for each in self._callbacks.values() if each.owner == owner]
        for callback in closed:
            callback.close()
        until_s = self._clock() + deadline_s
        for callback in closed:
            callback.join(max(until_s - self._clock(), 0.0))
        with self._lock:
            self._forget_those_over()

    def report_slow(self) -> None:
        """Say of each call that has been running for long that it is; once for each call."""
        for callback in self._all():
            began_s = callback.began_s
            if began_s is not None and not callback.is_reported and self._clock() - began_s >= SLOW_AFTER_S:
                callback.is_reported = True
                object_type, name = callback.key
                self._log.warning(
                    "callback does not return", type=object_type, callback=name, owner=callback.owner
                )

    def statuses(self) -> tuple[StrategyCallback, ...]:
        """Every callback, also one that was closed and has not returned yet."""
        now_s = self._clock()
        return tuple(each.status(now_s) for each in self._all())

    def _all(self) -> tuple[RegisteredCallback, ...]:
        with self._lock:
            self._forget_those_over()
            return tuple(self._callbacks.values())

    def _forget_those_over(self) -> None:
        self._callbacks = {key: each for key, each in self._callbacks.items() if not each.is_over}


class States:
    """The newest states. One thread publishes, that of the daemon's loop; any thread may read. Implements `StatesInformer`.

    A reading that differs from the one before has the callbacks of its kind called. Order and repetition are no difference.
    """

    def __init__(self, callbacks: StateCallbacks) -> None:
        self.callbacks = callbacks
        self._known = KnownStates()
        self._synced = asyncio.Event()
        self.refused_total = 0
        """Readings without pods that were not believed."""

    def publish_node(self, node: NodeState) -> None:
        self._become(self._known.with_node(node), ObjectType.NODE)

    def publish_pods(self, pods: Iterable[PodState], *, is_healthy: bool) -> bool:
        """All pods of the node were read; whether the reading was believed.

        `is_healthy`: the source's last list succeeded, and its watch has been unbroken since. A reading without pods after one with
        pods is believed only then: a kubelet or API server that is coming up says the same as a node without pods.
        """
        read = tuple(pods)
        known = self._known.with_pods(read, is_healthy=is_healthy)
        self._become(known, ObjectType.ALL_PODS)
        is_believed = bool(read) or not known.pods
        self.refused_total += not is_believed
        return is_believed

    def publish_vms(self, vms: Iterable[VmState]) -> None:
        self._become(self._known.with_vms(vms), ObjectType.ALL_VMS)

    def publish_policies(self, policies: Iterable[ScalingPolicyState]) -> None:
        self._become(self._known.with_policies(policies), ObjectType.SCALING_POLICIES)

    async def wait_for_sync(self) -> None:
        """Wait until each kind was published at least once."""
        await self._synced.wait()

    def missing(self) -> tuple[ObjectType, ...]:
        return self._known.missing

    def has_synced(self) -> bool:
        return not self._known.missing

    def get_node(self) -> NodeState | None:
        return self._known.node

    def get_all_pods(self) -> tuple[PodState, ...]:
        """All pods of the node, in the order of their UIDs."""
        return self._known.pods or ()

    def get_all_vms(self) -> tuple[VmState, ...]:
        """All VMs of the agent, in the order of their names."""
        return self._known.vms or ()

    def get_scaling_policies(self) -> tuple[ScalingPolicyState, ...]:
        """All scaling policies that matter to the node, in the order of their names."""
        return self._known.policies or ()

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        """Call `callback` after objects of the type have changed, as `StateCallbacks.register` says."""
        self.callbacks.register(object_type, name, description, callback)

    def send_callback(self, object_type: ObjectType) -> None:
        self.callbacks.send(object_type)

    def _become(self, known: KnownStates, changed: ObjectType) -> None:
        if known is self._known:
            return
        self._known = known
        if not known.missing:
            self._synced.set()
        self.callbacks.send(changed)


class StrategyStates:
    """The states as one strategy's thread is given them: its callbacks end with the thread. Implements `StatesInformer`."""

    def __init__(self, states: States, owner: str) -> None:
        self._states = states
        self._owner = owner
        self.has_synced = states.has_synced
        self.get_node = states.get_node
        self.get_all_pods = states.get_all_pods
        self.get_all_vms = states.get_all_vms
        self.get_scaling_policies = states.get_scaling_policies
        self.send_callback = states.send_callback

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        """Call `callback` after objects of the type have changed, as `StateCallbacks.register` says, until the strategy ends."""
        self._states.callbacks.register(object_type, name, description, callback, self._owner)

    def close(self, deadline_s: float) -> None:
        """End the strategy's callbacks, and wait `deadline_s` at most for those that run."""
        self._states.callbacks.close(self._owner, deadline_s)
