"""What a plugin answered, whether its method is plain or a coroutine."""

import inspect
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast

from scheduler.placing.core.plugin import MaybeAwaited, Plugin
from scheduler.placing.core.status import Status, is_success

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
