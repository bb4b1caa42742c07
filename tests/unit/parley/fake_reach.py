"""A way to an installation that is made up: answers by path, and what was asked."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeAlias

import click
import msgspec
from click.testing import CliRunner, Result

from parley.commands import commands, explain_command
from parley.reach.ports import Answered, Command, Got, NoAnswer, Reach

REFUSED = "does not answer: connection refused"
Answers: TypeAlias = Mapping[str, Any]


def unknown(peer: str) -> NoAnswer:
    """A program that knows no such VM."""
    return NoAnswer(f"{peer} answered with status 404: no such VM", 404, "unknown-vm")


class FakeReach:
    """`scheduler` answers by path without its query, `agents` by name and then by path. A document, a struct, a `NoAnswer`, or a list
    of those, one for each call; a path that is not there is unknown. None: nobody is there. `asked` is every path with its query."""

    def __init__(
        self,
        scheduler: Answers | None = None,
        agents: Mapping[str, Answers | None] | None = None,
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._agents = agents or {}
        self._nodes = nodes or {}
        self.asked: list[str] = []
        self.asked_agents: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def scheduler(self, path: str) -> Answered:
        self.asked.append(path)
        return self._answer("the scheduler", self._scheduler, path)

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        """Their names."""
        return tuple(self._agents)

    async def agent(self, agent: str, path: str) -> Answered:
        self.asked_agents.append(agent)
        return self._answer(f"the agent of {agent}", self._agents[agent], path)

    async def agent_of(self, node: str) -> str | None:
        return self._nodes.get(node)

    def token_hint(self) -> str:
        """None is needed."""
        return "with nothing"

    def _answer(self, peer: str, answers: Answers | None, path: str) -> Answered:
        if answers is None:
            return NoAnswer(f"{peer} {REFUSED}")
        found = answers.get(path.partition("?")[0])
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            return unknown(peer)
        if isinstance(found, NoAnswer):
            return found
        return Got(msgspec.json.decode(msgspec.json.encode(found)), peer)


class FakeWay:
    """A way with an option of its own."""

    def __init__(self, reach: FakeReach, namespace: str = "default") -> None:
        self._reach, self._namespace = reach, namespace
        self.given: Mapping[str, Any] = {}

    def options(self, command: Command) -> Command:
        """`--where`."""
        return click.option("--where", default="here")(command)

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        self.given = options
        return self._reach

    def namespace(self, options: Mapping[str, Any]) -> str:
        assert "where" in options
        return self._namespace


def called(reach: FakeReach, *arguments: str, namespace: str = "default") -> Result:
    """Call one of the commands by its name, without a terminal."""
    group = click.Group("parley")
    way = FakeWay(reach, namespace)
    for command in (explain_command(way), *commands(way)):
        group.add_command(command)
    return CliRunner().invoke(group, list(arguments))
