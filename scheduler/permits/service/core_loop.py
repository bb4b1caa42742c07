"""The run-to-completion queue around the core: an input is decided and recorded, then what the core asks for is begun.

The outcome of such an effect is an input again, and waits in the queue until everything before it has run: no call nests.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from scheduler.permits.core import events
from scheduler.permits.core.core import Core
from scheduler.ports import Journal, LeadershipGuard

Outputs: TypeAlias = tuple[events.Output, ...]


class CoreLoop:
    """Owns the core's inputs. `perform` begins what one output asks for; `failed` is told of an outcome that the core could
    not take by our fault. Neither raises. `guard` is asked before each decision, and before an effect changes the cluster."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        perform: Callable[[events.Output], object],
        failed: Callable[[events.Input, Exception], object],
        guard: LeadershipGuard,
    ) -> None:
        self.guard = guard
        self._core = core
        self._journal = journal
        self._perform = perform
        self._failed = failed
        self._inbox: deque[tuple[events.Input, bytes, Callable[[], object] | None]] = deque()
        self._is_running = False

    def decide(self, event: events.Input) -> Outputs:
        """Take an input that is no request to the core and record it; its outputs are for `run`.

        Raises `NotLeadingError` for a verdict or a placement, which would be a decision, if none may be made.
        """
        if isinstance(event, events.AdmissionCallEnded | events.PlacementAssumed):
            self.guard.check(0)
        outputs = self._core.apply(event)
        self._journal.input(event, outputs)
        return outputs

    def decide_request(self, arrived: events.RequestArrived, body: bytes) -> Outputs:
        """Take a request to the core and record it with its bytes; its outputs are for `run`. Raises `NotLeadingError`."""
        extension = arrived.request.extension
        self.guard.check(extension.seen_epoch if extension is not None else 0)
        outputs = self._core.apply(arrived)
        self._journal.request(arrived, body, outputs)
        return outputs

    def run(self, outputs: Outputs) -> None:
        """Begin what `outputs` ask for, and then take the outcomes that were there at once."""
        assert not self._is_running, "an effect reports by `put`"
        self._is_running = True
        try:
            for output in outputs:
                self._perform(output)
            self._drain()
        finally:
            self._is_running = False

    def put(self, event: events.Input, body: bytes = b"", then: Callable[[], object] | None = None) -> None:
        """Take what became of an effect: now, or after what is running. `then` is called once the event counts."""
        self._inbox.append((event, body, then))
        if not self._is_running:
            self.run(())

    def _drain(self) -> None:
        while self._inbox:
            event, body, then = self._inbox.popleft()
            try:
                if isinstance(event, events.RequestArrived):
                    outputs = self.decide_request(event, body)
                else:
                    outputs = self.decide(event)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon
                self._failed(event, error)
                outputs = ()
            if then is not None:
                then()
            for output in outputs:
                self._perform(output)
