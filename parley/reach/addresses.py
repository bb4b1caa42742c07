"""The options of commands that reach the programs by addresses. Loaded with every call of the program, so it loads nothing slow."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from hosting.options import (
    agents_option,
    ca_option,
    scheduler_option,
    token_option,
    warn_of_plain_tokens,
)
from parley.reach.ports import Command, Reach


class ByAddress:
    """The way by `--scheduler` and `--agent`."""

    def options(self, command: Command) -> Command:
        """The addresses, a token, and the authorities that are trusted."""
        for option in (ca_option, token_option, agents_option, scheduler_option):
            command = option(command)
        return command

    def reach(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Reach]:
        """The programs at the addresses. Warns of a token that would travel unprotected."""
        from parley.reach.direct import DirectReach  # noqa: PLC0415 - `--version` should not load the client

        agents, token = options["agents"], options["token"]
        warn_of_plain_tokens(agents, token)
        return DirectReach(options["schedulers"], agents, token, options["tls"])

    def namespace(self, _: Mapping[str, Any]) -> str:
        return "default"
