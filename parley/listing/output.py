"""The writing and the end of commands: one line at a time, quietly if the reader has gone, with one exit code for each kind of end."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import click

from hosting import lifecycle

NOBODY: Final = 1
"""Exit code: nobody answered, the thing asked for is not known, or the output cannot be written."""
GONE: Final = 141
"""Exit code: the reader of our output has gone, as a shell tells of a program that SIGPIPE ended."""

Main: TypeAlias = Callable[[lifecycle.Stop], Awaitable[int]]


def run(main: Main, *, interrupted: int = lifecycle.INTERRUPTED) -> int:
    """Run a command to its end; its exit code, `interrupted` if Ctrl-C or another such signal ended it. A reader that goes before the end,
    such as `head`, is no error to talk about."""
    return ended(lambda: lifecycle.run(lambda stop: _until_stopped(main, stop, interrupted)))


def ended(tell: Callable[[], int]) -> int:
    """The result of `tell`, once everything is written; the exit code of failed output if the output fails."""
    try:
        code = tell()
        sys.stdout.flush()
    except BrokenPipeError:
        _be_quiet()
        return GONE
    except OSError as error:  # calls end as values: this is our own output, such as a full disk
        _be_quiet()
        click.echo(f"the output cannot be written: {error.strerror}", err=True)
        return NOBODY
    return code


async def _until_stopped(main: Main, stop: lifecycle.Stop, interrupted: int) -> int:
    """Cancel `main` with the first signal: a command that asks has nothing to drain, and its calls may wait for long."""
    working, waiting = asyncio.ensure_future(main(stop)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        return interrupted if working.cancelled() else working.result()
    finally:
        working.cancel()
        waiting.cancel()


def _be_quiet() -> None:
    """Let the interpreter flush what is left to nowhere when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # no file behind it, as in tests
        return
