"""The interface by which the commands ask the programs, on any way to these."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Got:
    """A usable answer: its JSON document."""

    document: Mapping[str, Any]
    peer: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No usable answer. `fault` is for people and names the peer; `status` is that of an answer, None if there was none; `code` is that
    of a problem document, empty if there was none."""

    fault: str
    status: int | None = None
    code: str = ""


Answered: TypeAlias = Got | NoAnswer


class Reach(Protocol):
    """The way to one installation, within `async with`. Every call has a deadline of its own, and raises nothing but cancellation."""

    async def scheduler(self, path: str) -> Answered:
        """The answer of the scheduler that leads to `GET path`."""

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        """The agents that are known, each by a name that `agent` takes and people understand."""

    async def agent(self, agent: str, path: str) -> Answered:
        """The answer of one agent to `GET path`."""

    async def agent_of(self, node: str) -> str | None:
        """The agent of a node, None if there is none or it is not known: then all are asked."""

    def token_hint(self) -> str:
        """How a user of this way shows a token, as a part of a sentence: `with --token-file`."""


Command: TypeAlias = Callable[..., Any]
"""A function that click makes a command of."""


class Way(Protocol):
    """The way on which a family of commands reaches an installation: options of the command line, and the objects made of them.

    The commands are built once for each way (`parley.commands.commands`, `explain_command`). Modules of a way are
    loaded with every call of the program, so slow modules are imported in `reach` only.
    """

    def options(self, command: Command) -> Command:
        """The same command with the options of this way; their values come to it as keyword arguments, beside the command's own. `-n`/`--namespace`,
        `-A`, `-o`, `--node` and `--pool` belong to the commands."""

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        """The way to the installation that the options name. May warn on standard error. Raises `click.UsageError` for options that do not go together."""

    def namespace(self, options: Mapping[str, Any]) -> str:
        """The namespace of VMs that are named without one: `default`, or that of a context."""
