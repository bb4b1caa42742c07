"""`parley nodes`, `parley pools` and `parley vms`: ask, filter, sort, print."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import msgspec

from hosting.lifecycle import Stop
from parley.listing import output as outputs
from parley.listing.core.decisions import VmFilter, none_of
from parley.listing.core.tables import (
    NODE_COLUMNS,
    POOL_COLUMNS,
    VM_COLUMNS,
    NodeFilter,
    PoolFilter,
    TableColumn,
    ordered,
    shown,
    table,
)
from parley.reach import asking
from parley.reach.ports import NoAnswer, Reach
from parley.top.texts import clean
from protocol.explaining import Nodes
from protocol.pages import PoolsShown
from protocol.texts import counted

T = TypeVar("T")
ReachManager = AbstractAsyncContextManager[Reach]


@dataclass(frozen=True, slots=True)
class Style:
    """How a list is printed: `output` is table, wide or json; `sort` is a column, with a minus before it for the largest first."""

    output: str = "table"
    sort: str | None = None
    has_heads: bool = True


def nodes(reach: ReachManager, wanted: NodeFilter, style: Style) -> int:

    async def ask(asked: Reach) -> int:
        found = await asking.document(asked, "/v1/nodes", Nodes)
        if isinstance(found, NoAnswer):
            return failed(found)
        kept = [each for each in found.nodes if wanted.passes(each)]
        kept = ordered(NODE_COLUMNS, kept, style.sort, lambda each: each.node)
        _print(
            kept,
            NODE_COLUMNS,
            style,
            {"nodes": kept, "configurationFault": found.configuration_fault},
        )
        if found.configuration_fault and style.output != "json":
            click.echo(
                f"the configuration is not taken up: {clean(found.configuration_fault, 500)}", err=True
            )
        _nothing(kept, style, none_of("node", len(found.nodes)))
        return 0

    return _run(reach, ask)


def pools(reach: ReachManager, wanted: PoolFilter, style: Style) -> int:

    async def ask(asked: Reach) -> int:
        found = await asking.document(asked, "/v1/pools", PoolsShown)
        if isinstance(found, NoAnswer):
            return failed(found)
        kept = [each for each in found.pools if wanted.passes(each)]
        kept = ordered(POOL_COLUMNS, kept, style.sort, lambda each: each.name)
        _print(kept, POOL_COLUMNS, style, {"pools": kept})
        _nothing(kept, style, none_of("pool", len(found.pools)))
        return 0

    return _run(reach, ask)


def vms(reach: ReachManager, wanted: VmFilter, style: Style) -> int:

    async def ask(asked: Reach) -> int:
        found = await asking.state(asked)
        if isinstance(found, NoAnswer):
            return failed(found)
        kept = ordered(VM_COLUMNS, filter(wanted.passes, found.vms), style.sort, lambda each: each.vm)
        with_namespace = wanted.namespace is None or any("/" in name for name in wanted.names)
        columns = VM_COLUMNS if with_namespace else VM_COLUMNS[1:]
        content = {"instance": found.instance, "at": found.at, "isCut": found.is_cut, "vms": kept}
        _print(kept, columns, style, content)
        if found.is_cut:
            click.echo(
                f"there are more: only the first {counted(len(found.vms), 'VM')} were asked for", err=True
            )
        _nothing(kept, style, wanted.none_of(found.vms))
        return 0

    return _run(reach, ask)


def _run(reach: ReachManager, ask: Callable[[Reach], Awaitable[int]]) -> int:
    async def main(_: Stop) -> int:
        async with reach as asked:
            return await ask(asked)

    return outputs.run(main)


def failed(found: NoAnswer) -> int:
    """Say why there is no list; the exit code."""
    click.echo(clean(found.fault, 500), err=True)
    return outputs.NOBODY


def _print(
    rows: Sequence[T], columns: Sequence[TableColumn[T]], style: Style, content: dict[str, Any]
) -> None:
    if style.output == "json":
        click.echo(json.dumps(msgspec.to_builtins(content)))
        return
    kept = shown(columns, is_wide=style.output == "wide")
    if rows:
        for line in table(kept, rows, has_heads=style.has_heads):
            click.echo(line)


def _nothing(kept: Sequence[T], style: Style, why: str) -> None:
    """Say, beside the output, that a table is empty, and why."""
    if not kept and style.output != "json":
        click.echo(why, err=True)
