"""`parley-agent plugins` and `parley-agent qos`: the state of a running agent, for people or scripts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import click
import msgspec

from hosting import lifecycle, problems, tokens
from hosting.client import Answered, HttpClient
from hosting.settings import Settings
from hosting.tls import Tls
from protocol.agent_pages import read
from protocol.explaining import Document
from protocol.pages import (
    NodePluginShown,
    NodePluginsShown,
    StrategiesShown,
    StrategyDecisionShown,
    StrategyShown,
)
from protocol.texts import clean

_D = TypeVar("_D", bound=Document)

DEADLINE_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
NO_PLUGINS: Final = "the agent has no plugin manager: its settings have no plugins.directory"
NO_STRATEGIES: Final = "the agent runs no strategies: its settings have no part `qos`"


def show_plugins(url: str, token: str | None, tls: Tls | None, output: str) -> int:
    """Print the plugins of an agent; 1 when it does not answer."""
    found = _asked(f"{url}/v1/plugins", token, tls, NodePluginsShown)
    if isinstance(found, str):
        click.echo(f"{url}: {found}", err=True)
        return 1
    if output == "json":
        click.echo(msgspec.json.encode(found).decode())
    elif found.directory is None:
        click.echo(f"{found.node}: {NO_PLUGINS}")
    elif not found.plugins:
        click.echo(clean(f"{found.node}: no plugin has made a socket in {found.directory}"))
    else:
        _table(
            ("TYPE", "NAME", "STATE", "SINCE", "VERSIONS", "CALLS", "FAILED", "ENDPOINT", "LAST ERROR"),
            [_plugin(each) for each in found.plugins],
        )
        if found.more:
            click.echo(clean(f"and {sum(found.more.values())} more sockets: {_counted(found.more)}"))
    return 0


def _plugin(plugin: NodePluginShown) -> tuple[str, ...]:
    calls = plugin.calls
    error = plugin.last_error or calls.last_error or "-"
    if plugin.retry_in_seconds is not None:
        error += f" (again in {plugin.retry_in_seconds:.0f} s)"
    return (
        plugin.type or "?",
        plugin.name or "?",
        plugin.state,
        _since(plugin.since_seconds),
        ",".join(plugin.versions) or "-",
        str(calls.made),
        str(calls.failed + calls.timed_out + calls.turned_away),
        plugin.endpoint or plugin.socket,
        error,
    )


def show_strategies(url: str, token: str | None, tls: Tls | None, output: str) -> int:
    """Print the strategies of an agent; 1 when it does not answer."""
    found = _asked(f"{url}/v1/qos", token, tls, StrategiesShown)
    if isinstance(found, str):
        click.echo(f"{url}: {found}", err=True)
        return 1
    if output == "json":
        click.echo(msgspec.json.encode(found).decode())
    elif not found.enabled:
        click.echo(f"{found.node}: {NO_STRATEGIES}")
    else:
        head = ("STRATEGY", "GATE", "STATE", "SINCE", "WRITES", "EVICTIONS", "LAST DECISION")
        lines = _lines(head, [_strategy(each) for each in found.strategies])
        click.echo(next(lines))
        for line, strategy in zip(lines, found.strategies, strict=True):
            click.echo(line)
            for act in _acts_before(strategy.decisions):
                click.echo(f"  last action: {act}")
    return 0


def _acts_before(decisions: Sequence[StrategyDecisionShown]) -> Iterator[str]:
    """The last decision that acted, if another one came after it."""
    acts = [each for each in decisions[:-1] if each.action]
    if acts and not decisions[-1].action:
        yield clean(_decided(acts[-1]))


def _strategy(strategy: StrategyShown) -> tuple[str, ...]:
    gate = "on" if strategy.enabled else "off"
    if strategy.recommend_only and strategy.enabled:
        gate = "recommends"
    said = _decided(strategy.decisions[-1]) if strategy.decisions else "-"
    if strategy.last_error:
        said = f"failed: {strategy.last_error}"
    return (
        strategy.name,
        gate,
        strategy.state,
        _since(strategy.since_seconds),
        _counted(strategy.counts.get("write", {})),
        _counted(strategy.counts.get("evict", {})),
        said,
    )


def _decided(decision: StrategyDecisionShown) -> str:
    return f"{decision.reason}: {decision.message} ({_since(decision.seconds_ago)} ago)"


def _counted(results: Mapping[str, int]) -> str:
    return ",".join(f"{result}={count}" for result, count in sorted(results.items())) or "-"


def _meaning(model: type[Settings], name: str) -> str:
    """The meaning of a field. A model that gives a field of its base another default keeps the base's text."""
    declared = (getattr(base, "model_fields", {}).get(name) for base in model.__mro__)
    return next((field.description for field in declared if field and field.description), "")


def show_known(output: str) -> int:
    from agent.node.qos.config import QOSExtensionConfig  # noqa: PLC0415 - loads every strategy

    config = QOSExtensionConfig()
    config.init_flags({})
    features = [
        {
            "name": each.name,
            "stage": each.spec.stage.value,
            "default": each.spec.default,
            "error": each.error or None,
        }
        for each in config.extensions
    ]
    known = [
        {
            "name": f"{each.name}.{field.alias or name}",
            "default": getattr(each.args, name),
            "help": _meaning(type(each.args), name),
        }
        for each in config.extensions
        if each.args is not None
        for name, field in type(each.args).model_fields.items()
    ]
    if output == "json":
        click.echo(json.dumps({"features": features, "args": known}))
        return 0
    _table(
        ("STRATEGY", "STAGE", "DEFAULT", "NOT USABLE BECAUSE"),
        [
            (
                str(each["name"]),
                str(each["stage"]),
                "on" if each["default"] else "off",
                str(each["error"] or "-"),
            )
            for each in features
        ],
    )
    click.echo()
    _table(
        ("ARG", "DEFAULT", "MEANING"),
        [(str(each["name"]), json.dumps(each["default"]), str(each["help"])) for each in known],
    )
    return 0


def _asked(url: str, token: str | None, tls: Tls | None, kind: type[_D]) -> _D | str:
    """The agent's document, or why there is none."""
    found: list[_D | str] = []

    async def fetch(_: lifecycle.Stop) -> int:
        async with HttpClient(max_answer_bytes=MAX_ANSWER_BYTES, tls=tls) as client:
            outcome = await client.call("GET", url, deadline_s=DEADLINE_S, headers=tokens.headers(token))
        if not isinstance(outcome, Answered):
            found.append(f"no agent answers: {outcome.message}")
        else:
            found.append(_document(outcome, kind))
        return 0

    lifecycle.run(fetch)
    return found[0] if found else "interrupted"


def _document(outcome: Answered, kind: type[_D]) -> _D | str:
    if outcome.status == 404:
        return "this agent has no such page; is it an older one?"
    if outcome.status != 200:
        return f"status {outcome.status}: {clean(problems.text_of(outcome.body), 300)}"
    try:
        return read(json.loads(outcome.body), kind)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return "what answers there is no agent"


def _since(seconds: float) -> str:
    """A time span in one word."""
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in _lines(head, rows):
        click.echo(line)


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head))]
    for row in shown:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
