"""The commands of all programs, with their options."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import click

from agent.program import main as agent
from informant.program import main as informant
from parley.program import kubectl_main, main
from scheduler.program import main as scheduler

ROOTS: Final = {
    "parley": main,
    "kubectl parley": kubectl_main,
    "parley-agent": agent,
    "parley-scheduler": scheduler,
    "parley-informant": informant,
}


@dataclass(frozen=True, slots=True)
class CommandOption:
    """An option, or an argument, whose names are in capitals."""

    names: str
    default: str
    help: str


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    """A command by what one types."""

    path: str
    about: str
    options: tuple[CommandOption, ...]


def every() -> Iterator[DocumentedCommand]:
    """All commands, those of a group after the group."""
    for path, command in ROOTS.items():
        yield from _below(path, command)


def _below(path: str, command: click.Command) -> Iterator[DocumentedCommand]:
    if command.hidden:
        return
    context = click.Context(command, info_name=path)
    options = [_argument(each, context) for each in command.params if isinstance(each, click.Argument)]
    options += [
        _option(each, context)
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and "--version" not in each.opts
    ]
    about = " ".join((command.help or "").split("\f")[0].split())
    yield DocumentedCommand(path, about, tuple(options))
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _below(f"{path} {name}", command.commands[name])


def _argument(argument: click.Argument, context: click.Context) -> CommandOption:
    """The help of the command tells what its arguments are."""
    return CommandOption(
        argument.make_metavar(context), "", "see above" if argument.required else "see above; may be left out"
    )


def _option(option: click.Option, context: click.Context) -> CommandOption:
    names = ", ".join((*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    default = option.get_default(context, call=False)
    is_plain = (
        isinstance(default, bool)
        or default is None
        or "Sentinel" in type(default).__name__
        or callable(default)
    )
    told = "" if is_plain else str(default)
    return CommandOption(f"{names}{kind}", f"`{told}`" if told else "", option.help or "")
