"""A group of commands whose options may be typed before the command, too, as kubectl takes them."""

import click
from click.core import ParameterSource


class OptionsFirstGroup(click.Group):
    """Hands what is given before the command down to it, as the default of its own option of that name; the command's own word goes before it.

    A command without such an option ignores it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As every group; the commands' defaults are known afterwards, for the completion of a shell as well."""
        rest = super().parse_args(ctx, args)
        given = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        ctx.default_map = dict.fromkeys(self.commands, given)
        return rest
