"""Pools in the real process: plugins from elsewhere, `/v1/pools`, files that change, restarts and a state directory."""

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_scheduler_in_use import Agent, lines, node, put
from tests.support.processes import Program, amount, fetch, free_port, post, running, write_json
from tests.support.waiting import shown_blocking

PLUGIN = '''
"""A plugin from another distribution. What it does stands in a file, which is read at every call."""

import asyncio
import json
from pathlib import Path

from parley.plugins import Admission, BasePlugin, new_insufficient_resources, new_invalid_spec


class Door(BasePlugin):
    def __init__(self, path):
        self.path = Path(path)

    def name(self):
        return "door"

    def pre_update_pool(self, ctx, new_pool, pods):
        says = json.loads(self.path.read_text()).get(new_pool.name, {})
        if ctx.purpose != "probe":
            return Admission()
        if says.get("hang"):
            return asyncio.sleep(1000)
        if says.get("deaf"):
            return self.deaf()
        if says.get("wrong"):
            raise new_invalid_spec(says["wrong"])
        if new_pool.replicas > says.get("most", 1000):
            raise new_insufficient_resources(f"no room for {new_pool.replicas}")
        return Admission()

    async def deaf(self):
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass


def factory(handle, providers, args):
    if not isinstance(args, dict) or "file" not in args:
        raise ValueError("file: is required")
    return Door(args["file"])
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An out-of-tree distribution with a plugin `door`, and the file that says what it does."""
    site = tmp_path / "site"
    info = site / "parley_door-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "parley_door.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parley-door\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[parley.pool_plugins]\ndoor = parley_door:factory\n")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    write_json(tmp_path / "says.json", {})
    return tmp_path


def config(directory: Path, *names: str, **args: Any) -> Path:
    """A configuration with a chain."""
    path = directory / "config.yaml"
    plugins = [
        {"name": name, "args": {"file": str(directory / "says.json"), **args} if name == "door" else None}
        for name in names
    ]
    put(path, {"pools": {"plugins": plugins}})
    return path


def cluster(directory: Path, vms: dict[str, str], pools: dict[str, dict[str, int]]) -> Path:
    """A cluster of one node with VMs, each in a pool, and the pools with their limits."""
    path = directory / "cluster.yaml"
    described = [
        {
            "namespace": "d",
            "name": name,
            "uid": f"uid-{name}",
            "node": "n1",
            "min": amount(1),
            "max": amount(9),
            "labels": {"parley.dev/pool": pool},
        }
        for name, pool in vms.items()
    ]
    put(
        path,
        {
            "nodes": [{"name": "n1", "allocatable": amount(200), "computeUnit": amount(1)}],
            "vms": described,
            "pools": [
                {"name": name, "computeUnit": amount(1), "limits": limits} for name, limits in pools.items()
            ],
        },
    )
    return path


@contextmanager
def scheduler(directory: Path, *more: str) -> Iterator[tuple[Program, int]]:
    """A scheduler that serves the files of a directory."""
    port = free_port()
    files = ["--first-start", "--cluster", str(directory / "cluster.yaml"), "--port", str(port)]
    if (directory / "config.yaml").exists():
        files += ["--config", str(directory / "config.yaml")]
    with running("scheduler", *files, *more, output=directory / f"scheduler-{port}.log") as program:
        shown_blocking("the scheduler's health", lambda: fetch(port, "/readyz"))
        yield program, port


def send(port: int, method: str, path: str, content: object = None) -> tuple[int, dict[str, Any]]:
    """Send something to `/v1/pools`."""
    body = json.dumps(content).encode() if content is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/pools{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}


def pool(port: int, name: str = "bank") -> dict[str, Any]:
    """A pool as it is shown."""
    status, content = send(port, "GET", f"/{name}")
    assert status == 200, content
    return content


def refused_start(directory: Path, *more: str) -> tuple[int, str]:
    """The exit code and the words of a scheduler that does not start."""
    arguments = ("--cluster", str(directory / "cluster.yaml"), "--port", str(free_port()), *more)
    with running("scheduler", *arguments, output=directory / "refused.log") as program:
        return program.process.wait(60), program.text()


def test_a_plugin_from_elsewhere_decides_and_pools_are_written_over_http(site: Path) -> None:
    cluster(site, {"a": "bank", "b": "bank", "c": "none"}, {"bank": {"maxUnits": 12}})
    config(site, "door")
    put(site / "says.json", {"bank": {"most": 6}})
    with scheduler(site) as (_, port):
        a, b, c = (Agent(port, name).settle() for name in "abc")
        assert c.ask(2) == (1, ["pool"])
        assert a.ask(9)[0] == 5
        assert b.ask(4) == (1, ["pool-saturated"])
        assert a.ask(2) == (2, [])
        assert b.ask(4) == (4, [])
        shown = pool(port)
        assert (shown["status"]["totalUnits"], shown["status"]["members"]) == (6, 2)
        assert shown["status"]["saturatedAtUnits"] == 6
        assert send(port, "PUT", "/bank", shown)[0] == 200
        assert send(port, "POST", "/bank/unpark")[1]["changed"] is True
        status, made = send(port, "POST", "", {"name": "none", "computeUnit": amount(1)})
        assert (status, made["status"]["members"]) == (201, 1)
        assert c.ask(2) == (2, [])
        assert send(port, "POST", "", {"name": "x" * 600_000})[0] == 413
        assert send(port, "POST", "", {"name": "None!"})[0] == 400
        assert send(port, "DELETE", "/none") == (200, {"name": "none", "deleted": True})
        assert c.ask(3) == (2, ["pool"])
        page = fetch(port, "/metrics").decode()
        assert 'parley_scheduler_pool_units{field="held",pool="bank"} 6.0' in page
        assert 'parley_scheduler_pool_state{pool="none",state="unknown"} 1.0' in page


def test_plugins_are_replaced_while_it_serves_and_bad_ones_are_not_taken(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    config(site)
    with scheduler(site) as (program, port):
        agent = Agent(port).settle()
        assert agent.ask(2) == (2, [])
        put(site / "says.json", {"bank": {"most": 3}})
        config(site, "door")
        shown_blocking(
            "the plugin",
            lambda: [each for each in lines(program, "pool plugins") if each["chain"] == ["door"]],
        )
        assert agent.ask(5) == (3, ["pool"])
        config(site, "dor", "door", "door")
        said = shown_blocking(
            "the faults", lambda: lines(program, "configuration not usable, the old one stays in force")
        )
        assert "pools.plugins[0].name" in said[0]["error"]
        assert "pools.plugins[2].name" in said[0]["error"]
        assert agent.ask(5) == (3, ["pool-saturated"])
        config(site)
        shown_blocking("no plugin", lambda: agent.ask(5) == (5, []))


def test_an_emergency_stop_does_not_wait_for_plugins_that_are_not_there(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    config(site)
    with scheduler(site) as (_, port):
        agent = Agent(port).settle()
        assert agent.ask(2) == (2, [])
        put(site / "config.yaml", {"growth": {"stop": True}, "pools": {"plugins": [{"name": "nobody"}]}})
        shown_blocking("the stop", lambda: b'"stop":true' in fetch(port, "/v1/nodes/n1"))
        assert agent.ask(5) == (2, ["stopped"])
        assert "parley_scheduler_config_stale 1.0" in fetch(port, "/metrics").decode()
        put(site / "config.yaml", {"growth": {"stop": False}})
        shown_blocking("growth", lambda: agent.ask(5) == (5, []))


def test_pools_and_labels_of_the_cluster_file_are_followed(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {"maxUnits": 3}})
    with scheduler(site) as (program, port):
        agent = Agent(port).settle()
        assert agent.ask(5) == (3, ["pool"])
        cluster(site, {"a": "bank"}, {"bank": {"maxUnits": 4}})
        shown_blocking("the new limit", lambda: agent.ask(5) == (4, ["pool"]))
        assert pool(port)["generation"] == 2
        cluster(site, {"a": "other"}, {"bank": {"maxUnits": 4}, "other": {}})
        shown_blocking("the other pool", lambda: agent.ask(5) == (5, []))
        cluster(site, {"a": "other"}, {"other": {}})
        shown_blocking("the end of the pool", lambda: send(port, "GET", "/bank")[0] == 404)
        assert lines(program, "pool deleted")[0]["pool"] == "bank"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_keeps_spec_generation_and_parking(site: Path, end: int) -> None:
    cluster(site, {"a": "bank", "b": "full"}, {"bank": {"maxUnits": 9}, "full": {}})
    config(site, "door")
    put(site / "says.json", {"bank": {"wrong": "no such team"}, "full": {"most": 2}})
    state = ("--state", str(site / "state"))
    with scheduler(site, *state) as (program, port):
        agent, full = Agent(port).settle(), Agent(port, "b").settle()
        assert send(port, "PUT", "/bank", {**pool(port), "limits": {"maxUnits": 7}})[1]["generation"] == 2
        assert agent.ask(3) == (1, ["pool-parked"])
        assert full.ask(5) == (2, ["pool"])
        stored = site / "state" / "pools.json"
        shown_blocking("the parking on disk", lambda: "no such team" in stored.read_text())
        uid = pool(port)["uid"]
        program.end(end)
    put(site / "says.json", {})
    with scheduler(site, *state) as (program, port):
        agent, full = Agent(port).settle(), Agent(port, "b").settle()
        shown = pool(port)
        assert (shown["uid"], shown["generation"], shown["limits"]) == (uid, 2, {"maxUnits": 7})
        told = {each["type"]: each["reason"] for each in shown["status"]["conditions"]}
        assert (told["Parked"], told["FileIgnored"]) == ("AdmissionRejected", "StoredWins")
        assert agent.ask(3) == (1, ["pool-parked"])
        assert full.ask(5) == (5, []), "that it was full is not kept"
        assert (
            len(lines(program, "pool is described otherwise in the file; the stored description counts")) == 1
        )
        program.end()
    config(site, "door", more=1)
    with scheduler(site, *state) as (program, port):
        agent = Agent(port).settle()
        assert agent.ask(3) == (3, []), "another chain: what was parked is asked about again"
        assert pool(port)["generation"] == 2
        assert program.end() == 0


def test_two_processes_on_one_state_directory(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    state = ("--state", str(site / "state"))
    with scheduler(site, *state) as (program, _):
        code, text = refused_start(site, *state)
        assert (code, "another scheduler keeps its pools there" in text) == (1, True)
        program.end(signal.SIGKILL)
    with scheduler(site, *state) as (program, port):
        assert pool(port)["generation"] == 1
        assert program.end() == 0


def test_what_cannot_be_started_is_told_in_full(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    path = config(site, "quote", "door")
    content = json.loads(path.read_text())
    content["pools"]["plugins"][1]["args"] = {}
    put(path, content)
    (site / "state").mkdir()
    (site / "state" / "pools.json").write_text("{half")
    code, text = refused_start(site, "--config", str(path), "--state", str(site / "state"))
    assert code == 2
    assert "pools.plugins[0].name: pool plugin 'quote' is not registered (there are: " in text
    assert "door" in text
    assert "pools.plugins[1].args: file: is required" in text
    assert "pools.json" in text
    assert "Traceback" not in text


def test_odd_args_of_a_plugin_are_no_fault_of_the_process(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    file = site / "says.json"
    (site / "config.yaml").write_text(
        f"pools: {{plugins: [{{name: door, args: {{1: x, file: {file}, 2026-01-01: y}}}}]}}\n"
    )
    with scheduler(site) as (program, port):
        assert Agent(port).settle().ask(3) == (3, [])
        assert program.end() == 0


def test_a_plugin_that_hangs_holds_up_its_growth_alone(site: Path) -> None:
    names = {f"h{number}": "hung" for number in range(20)} | {"a": "bank"}
    cluster(site, names, {"bank": {}, "hung": {}})
    config(site, "door")
    with scheduler(site) as (program, port):
        agents = {name: Agent(port, name).settle() for name in names}
        assert agents["h0"].ask(4) == (4, [])
        put(site / "says.json", {"hung": {"hang": True}})
        hung = [agents[f"h{number}"] for number in range(1, 20)]
        got: dict[str, tuple[int, list[str]]] = {}
        threads = [threading.Thread(target=lambda a=a: got.update({a.name: a.ask(3)})) for a in hung]
        for thread in threads:
            thread.start()
        assert agents["h0"].ask(2) == (2, []), "a decrease"
        assert agents["a"].ask(5) == (5, [])
        for thread in threads:
            thread.join(60)
        assert {units for units, _ in got.values()} == {1}
        assert {codes[0] for _, codes in got.values()} <= {"pool-failed", "probe-deadline"}
        put(site / "says.json", {})
        assert hung[0].ask(3) == (3, [])
        rows = {row["name"]: row["reserved"]["cpu"] for row in node(port)["rows"]}
        assert (rows["d/h2"], rows["d/h0"]) == ("1", "2")
        assert program.end() == 0


def test_a_plugin_that_cannot_be_cancelled_does_not_keep_the_process_from_ending(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    config(site, "door")
    with scheduler(site) as (program, port):
        agent = Agent(port).settle()
        put(site / "says.json", {"bank": {"deaf": True}})
        assert agent.ask(3) == (1, ["pool-failed"])
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(20) == 0


def test_writes_from_elsewhere_are_told_how_to_allow_them(site: Path) -> None:
    cluster(site, {"a": "bank"}, {"bank": {}})
    with scheduler(site, "--pool-writes-from-anywhere") as (_, port):
        assert post(port, json.dumps({"name": "x", "computeUnit": amount(1)}).encode(), "/v1/pools")[0] == 201
