"""Names for the completion of a shell: those of VMs and nodes that the scheduler tells at once, and none if it does not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from parley.reach.ports import Way

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEADLINE_S: Final = 1.0
"""A person waits for it, with a finger on the key."""
MAX_NAMES: Final = 500

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
KINDS: Final = ("vms", "nodes", "pools")


def complete_vms(way: Way) -> Complete:
    """VMs: by `NAMESPACE/NAME`, or by name if the namespace is given or the usual one."""
    return _complete(way, "vms")


def complete_nodes(way: Way) -> Complete:
    return _complete(way, "nodes")


def complete_pools(way: Way) -> Complete:
    return _complete(way, "pools")


def _complete(way: Way, kind: str) -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from parley.listing import completing  # noqa: PLC0415 - loads the client

        options: dict[str, Any] = dict(ctx.params)
        return completing.items(way, kind, options, incomplete)

    return complete
