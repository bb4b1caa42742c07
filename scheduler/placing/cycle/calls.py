"""How plugins are called: what they answered, whose fault an error is, how long calls took, and when others have their turn.

Durations are plain counts, read when somebody scrapes. What is called for each node is timed for one node in ten.
Source: reference/kubernetes.md 1.9, "Metrics".
"""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar, cast

from hosting.metrics import AnyFamily, Durations, HistogramFamily
from scheduler.placing.core.plugin import Plugin
from scheduler.placing.core.status import Code, Status, is_success
from scheduler.placing.core.values import MaybeAwaited

T = TypeVar("T")
_BLAMED: Final = "plugin "


async def answered(answer: MaybeAwaited[T]) -> T:
    """The answer; waited for only where it has to be."""
    if inspect.isawaitable(answer):
        return await cast("Awaitable[T]", answer)
    return answer


async def first_failure(answers: Iterable[tuple[Plugin, MaybeAwaited[Status | None]]]) -> Status | None:
    """The first status that is no Success, as the word of its plugin. With a generator, later plugins are not called then."""
    for plugin, answer in answers:
        status = await answered(answer)
        if status is not None and not is_success(status):
            return status.by(plugin.name())
    return None


def blame(error: Exception, plugin: str, point: str) -> None:
    """Note at what a plugin raised, or at what its answer led to, which plugin it was. The first note stays: it is the nearest."""
    if not any(note.startswith(_BLAMED) for note in getattr(error, "__notes__", ())):
        error.add_note(f'{_BLAMED}"{plugin}" failed at {point}')


@contextmanager
def blaming(plugin: Plugin, point: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        blame(error, plugin.name(), point)
        raise


def fault_text(error: Exception) -> str:
    """What went wrong, in one line, with the plugin where `blame` named one."""
    blamed = [note for note in getattr(error, "__notes__", ()) if note.startswith(_BLAMED)]
    return ": ".join([*blamed, repr(error)])


SAMPLED_EACH: Final = 10
"""Of what is called for each node, the share that is timed."""

SUCCEEDED: Final = str(Code.SUCCESS)
"""How an answer without a status is counted."""

RAISED: Final = str(Code.ERROR)
"""How a call that raises is counted, or one that is cancelled."""


def outcome_of(answer: object) -> str:
    """The name of the status in a plugin's answer, or in what a run returns: the answer itself, or a part of it."""
    if isinstance(answer, tuple):
        answer = next((part for part in answer if isinstance(part, Status)), None)
    if not isinstance(answer, Status):
        return SUCCEEDED
    return str(answer.code) if isinstance(answer.code, Code) else str(Code.ERROR)


class Timings:
    """Durations (s) by profile, point and status, by plugin, point and status, and of waits for a permit by status."""

    def __init__(self) -> None:
        self._points: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._plugins: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._waits: defaultdict[tuple[str, ...], Durations] = defaultdict(Durations)
        self._calls = 0

    def is_sampled(self) -> bool:
        """Whether the calls for the node that is next are timed."""
        self._calls = (self._calls + 1) % SAMPLED_EACH
        return self._calls == 1

    def point(self, profile: str, point: str, status: str, duration_s: float) -> None:
        """A run of all plugins of a point is over."""
        self._points[profile, point, status].observe(duration_s)

    def plugin(self, plugin: str, point: str, status: str, duration_s: float) -> None:
        self._plugins[plugin, point, status].observe(duration_s)

    def permit_wait(self, status: str, duration_s: float) -> None:
        self._waits[status,].observe(duration_s)

    def families(self) -> tuple[AnyFamily, ...]:
        """The durations so far."""
        return (
            _family(
                "parley_scheduler_extension_point",
                "Runs of an extension point",
                self._points,
                "profile",
                "point",
                "status",
            ),
            _family(
                "parley_scheduler_framework_plugin",
                "Calls of a plugin",
                self._plugins,
                "plugin",
                "point",
                "status",
            ),
            _family("parley_scheduler_permit_wait", "Waits for the permit", self._waits, "status"),
        )


def _family(
    name: str, about: str, durations: Mapping[tuple[str, ...], Durations], *labels: str
) -> HistogramFamily:
    now = tuple((values, each.now()) for values, each in durations.items())
    return HistogramFamily(f"{name}_seconds", f"{about}, by the outcome", now, labels)


TURN_S: Final = 0.003
"""How long a loop goes on before others have their turn."""


class LoopTurns:
    """Gives the event loop its turn every `TURN_S`, counted from the making of this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + TURN_S

    @property
    def is_due(self) -> bool:
        """Asked between two nodes: whether others should have their turn."""
        return self._loop.time() >= self._until_s

    async def give(self) -> None:
        """Let others go on."""
        await asyncio.sleep(0)
        self._until_s = self._loop.time() + TURN_S
