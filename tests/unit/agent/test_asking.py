"""`parley-agent plugins` and `parley-agent qos`: what is printed for people and scripts, and how they end."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.daemon import node_plugins, qos
from agent.daemon.inspecting import MAX_ANSWER_BYTES
from agent.daemon.serving import NO_EXTRA
from agent.node.plugins.core.plugin_info import PluginState
from agent.node.plugins.ports import PluginStatus
from agent.program import main
from protocol.agent_pages import read
from protocol.explaining import Document
from protocol.pages import (
    CollectorsShown,
    GroupWrite,
    NodePluginsShown,
    PluginCallCounts,
    StrategiesShown,
    StrategyCallback,
    StrategyDecisionShown,
    StrategyShown,
)
from tests.support.pages import paged

PLUGINS = (
    PluginStatus(
        "/run/p/a.sock",
        PluginState.REGISTERED,
        3700.0,
        "MetricsSource",
        "load",
        "/run/p/a.sock",
        ("v1",),
        figures=PluginCallCounts(
            made=9, failed=1, timed_out=2, in_flight=0, turned_away=3, last_error="it lied"
        ),
    ),
    PluginStatus("/run/p/b.sock", PluginState.FAILED, 3.0, last_error="no\nanswer", retry_in_s=7.6),
)
STRATEGIES = (
    StrategyShown(
        name="CPUSuppress",
        stage="ALPHA",
        enabled=True,
        recommend_only=True,
        state="running",
        since_seconds=130.0,
        counts={"decision": {"held-back": 4}, "write": {"recommended": 4}},
        decisions=(
            StrategyDecisionShown(
                seconds_ago=5.0,
                rounds=4,
                action=True,
                reason="held-back",
                message="2 CPUs are left",
                inputs={"share": 0.25},
            ),
        ),
    ),
    StrategyShown(
        name="MemoryEvict",
        stage="ALPHA",
        enabled=True,
        recommend_only=False,
        state="running",
        since_seconds=130.0,
        decisions=(
            StrategyDecisionShown(
                seconds_ago=61.0,
                rounds=1,
                action=True,
                reason="evicted",
                message="d/a evicted, for MemoryEvict",
            ),
            StrategyDecisionShown(
                seconds_ago=1.0, rounds=59, action=False, reason="no-pressure", message="memory in use 60 %"
            ),
        ),
    ),
    StrategyShown(
        name="Mine",
        stage="ALPHA",
        enabled=True,
        recommend_only=False,
        state="backing-off",
        since_seconds=1.0,
        restarts=2,
        last_error="oh no",
    ),
)
CALLBACKS = (
    StrategyCallback(
        objects="Node", name="n", owner="Mine", calls=3, errors=1, last_error="oh", running_seconds=2.0
    ),
)
WRITES = (GroupWrite(group="kubepods", resource="cpu-shares", value=2, strategy="CPUSuppress"),)
PAGES = {
    "plugins": node_plugins.document("n1", "/run/p", PLUGINS),
    "qos": msgspec.json.encode(
        StrategiesShown(
            node="n1",
            enabled=True,
            strategies=STRATEGIES,
            callbacks=CALLBACKS,
            writes=WRITES,
            collectors=CollectorsShown(rounds=3, round_seconds=0.0, pods=0),
        )
    ),
}


def asked(*arguments: str) -> Result:
    """Call it without a terminal."""
    return CliRunner().invoke(main, arguments)


def test_plugins_are_lines_with_state_figures_and_the_last_error() -> None:
    with paged(200, PAGES["plugins"]) as page:
        done = asked("plugins", "--address", page.url)
    assert (done.exit_code, page.paths) == (0, ["/v1/plugins"])
    head, load, other = (line.split(maxsplit=8) for line in done.stdout.splitlines())
    assert head[:5] == ["TYPE", "NAME", "STATE", "SINCE", "VERSIONS"]
    assert load == ["MetricsSource", "load", "registered", "62m", "v1", "9", "6", "/run/p/a.sock", "it lied"]
    assert other[2] == "failed"
    assert other[8] == "no answer (again in 8 s)"


def test_a_terminal_obeys_nothing_that_an_agent_or_its_plugins_say() -> None:
    nasty = "\x1b[2J\x1b]0;owned\x07\u202egpu"
    status = replace(
        PLUGINS[1],
        socket_path=f"/p/{nasty}",
        plugin_type=nasty,
        name=nasty,
        versions=(nasty,),
        last_error=nasty,
    )
    for folder, statuses in ((f"/p/{nasty}", (status,)), (f"/p/{nasty}", ()), (None, ())):
        with paged(200, node_plugins.document(f"n{nasty}", folder, statuses)) as page:
            done = asked("plugins", "--address", page.url)
        assert (done.exit_code, all(line.isprintable() for line in done.stdout.splitlines())) == (0, True)


def test_of_very_many_sockets_those_in_use_are_listed_first_and_the_rest_are_counted() -> None:
    dead = tuple(
        PluginStatus(f"/p/{number:05}", PluginState.FAILED, 1.0, last_error="e" * 1000)
        for number in range(25_000)
    )
    page_of_all = node_plugins.document("n1", "/p", (*dead, PLUGINS[0]))
    assert len(page_of_all) < MAX_ANSWER_BYTES / 4
    with paged(200, page_of_all) as page:
        done = asked("plugins", "--address", page.url)
    lines = done.stdout.splitlines()
    assert lines[1].split()[:2] == ["MetricsSource", "load"]
    assert (len(lines), lines[-1]) == (1002, "and 24001 more sockets: failed=24001")


def test_strategies_are_lines_with_gate_state_and_the_last_decision() -> None:
    with paged(200, PAGES["qos"]) as page:
        done = asked("qos", "--address", page.url)
    assert done.exit_code == 0
    _, suppress, evict, before, mine = (line.split(maxsplit=6) for line in done.stdout.splitlines())
    assert suppress == [
        "CPUSuppress", "recommends", "running", "2m", "recommended=4", "-", "held-back: 2 CPUs are left (5s ago)",
    ]  # fmt: skip
    assert evict[-1] == "no-pressure: memory in use 60 % (1s ago)"
    assert " ".join(before) == "last action: evicted: d/a evicted, for MemoryEvict (61s ago)"
    assert mine == ["Mine", "on", "backing-off", "1s", "-", "-", "failed: oh no"]


@pytest.mark.parametrize("command", ["plugins", "qos"])
def test_scripts_get_the_page_and_the_token_is_shown(command: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    with paged(200, PAGES[command]) as page:
        done = asked(command, "--address", page.url, "--output", "json", "--token-file", str(token))
    kinds: dict[str, type[Document]] = {"plugins": NodePluginsShown, "qos": StrategiesShown}
    kind = kinds[command]
    assert msgspec.json.decode(done.stdout, type=kind) == read(json.loads(PAGES[command]), kind)
    assert page.tokens == ["Bearer 0123456789abcdef"]


@pytest.mark.parametrize(
    ("command", "page_of", "words"),
    [
        ("plugins", lambda: node_plugins.document("n1", None, ()), "n1: the agent has no plugin manager"),
        (
            "plugins",
            lambda: node_plugins.document("n1", "/run/p", ()),
            "n1: no plugin has made a socket in /run/p",
        ),
        ("qos", lambda: qos.nothing("n1"), "n1: the agent runs no strategies"),
    ],
)
def test_an_agent_without_any_is_said(command: str, page_of: Callable[[], bytes], words: str) -> None:
    with paged(200, page_of()) as page:
        done = asked(command, "--address", page.url)
    assert (done.exit_code, done.stdout.startswith(words)) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, b"a bearer token is needed"), "status 401: a bearer token is needed"),
        (
            (
                401,
                b'{"status":401,"title":"Unauthorized","detail":"a token is needed","code":"unauthorised"}',
            ),
            "status 401: a token is needed",
        ),
        ((404, b""), "this agent has no such page; is it an older one?"),
        ((200, b"<html>"), "what answers there is no agent"),
    ],
)
def test_what_goes_wrong_is_said_with_the_address(answer: tuple[int, bytes], words: str) -> None:
    with paged(*answer) as page:
        done = asked("plugins", "--address", page.url)
    gone = asked("qos", "--address", page.url)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"{page.url}: {words}\n")
    assert (gone.exit_code, gone.stderr) == (1, f"{page.url}: no agent answers: connection refused\n")


def test_known_strategies_and_their_args_are_listed_without_an_agent() -> None:
    text, scripts = asked("qos", "--known"), asked("qos", "--known", "--output", "json")
    found = json.loads(scripts.stdout)
    assert {"CPUSuppress", "CPUBurst", "MemoryEvict", "CPUEvict"} <= {
        each["name"] for each in found["features"]
    }
    assert not any(each["default"] or each["error"] for each in found["features"])
    assert "CPUSuppress" in text.stdout
    assert "MemoryEvict.thresholdPercent" in {each["name"] for each in found["args"]}
    assert all(each["help"] for each in found["args"])


def test_the_agent_itself_needs_its_settings_and_known_gates(tmp_path: Path) -> None:
    assert "Missing option '--config'" in asked().stderr
    settings = tmp_path / "agent.yaml"
    settings.write_text("{node: n, scheduler: 'http://h:1', stateDirectory: /tmp/x}")
    done = asked("--config", str(settings), "--qos-extension-plugins", "CPUSupress=true")
    assert done.exit_code == 2
    words = "--qos-extension-plugins: CPUSupress: there is no such feature gate (there are: CPU"
    assert done.stderr.startswith(words)


def test_a_missing_extra_is_a_plain_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "agent.yaml"
    settings.write_text(
        f"{{node: n, scheduler: 'http://h:1', stateDirectory: {tmp_path}, plugins: {{directory: /run/p}}}}"
    )
    monkeypatch.setitem(sys.modules, "grpc", None)
    done = asked("--config", str(settings))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"{NO_EXTRA}\n"
