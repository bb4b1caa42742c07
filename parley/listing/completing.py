"""The answers to a shell when a name is to be completed. Silent and quick: after any fault there is nothing to complete."""

import asyncio
import contextlib
import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any, Final

from click.shell_completion import CompletionItem

from hosting import lifecycle
from parley.listing import documents
from parley.reach.ports import NoAnswer, Reach, Way
from parley.reach.vm_names import DEADLINE_S, MAX_NAMES
from parley.top.texts import clean
from protocol.pages import PoolsShown

MAX_NAME: Final = 400
"""Characters: Kubernetes allows a namespace of 63 and a name of 253. A name that is cut would be completed wrong."""


def items(way: Way, kind: str, options: Mapping[str, Any], incomplete: str) -> list[CompletionItem]:
    """The names of `kind` (vms, nodes, pools) that begin so. `options` are those of the command line so far."""
    found: list[str] = []

    async def main(_: lifecycle.Stop) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S), way.reach(options) as reach:
                found.extend(await _names(reach, kind))
        return 0

    # A shell shows any text that is written here in the middle of the line that is being typed.
    with redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
        lifecycle.run(main)
        if kind == "vms":
            found += _short(found, options.get("namespace") or way.namespace(options))
    names = sorted(
        {clean(name, MAX_NAME) for name in found if name.startswith(incomplete) and name.isprintable()}
    )
    return [CompletionItem(name) for name in names[:MAX_NAMES]]


async def _names(reach: Reach, kind: str) -> list[str]:
    if kind == "pools":
        found = await documents.document(reach, "/v1/pools", PoolsShown)
        return [] if isinstance(found, NoAnswer) else [each.name for each in found.pools]
    state = await documents.state(reach, max_pages=4)
    if isinstance(state, NoAnswer):
        return []
    return [each.vm for each in state.vms] if kind == "vms" else [each.node for each in state.nodes]


def _short(names: list[str], namespace: str) -> list[str]:
    """The names of VMs in the usual namespace, without it."""
    return [name.partition("/")[2] for name in names if name.partition("/")[0] == namespace]
