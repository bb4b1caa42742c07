"""Pools in the real process: plugins from elsewhere, `/v1/pools`, files that change, restarts and a state directory."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.schedulers import AskingAgent, figure, lines, put, refused, scheduler
from tests.support.processes import Program, amount, fetch, write_json
from tests.support.waiting import shown_blocking

PLUGIN = '''
"""A plugin from another distribution. What it does stands in a file, which is read at every call."""

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
        if says.get("wrong"):
            raise new_invalid_spec(says["wrong"])
        if new_pool.replicas > says.get("most", 1000):
            raise new_insufficient_resources(f"no room for {new_pool.replicas}")
        return Admission()


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
def pooling(directory: Path, *more: str) -> Iterator[tuple[Program, int]]:
    """A scheduler that serves the files of a directory."""
    config = directory / "config.yaml"
    files = ("--config", str(config)) if config.exists() else ()
    with scheduler(directory, *files, *more, first=True) as started:
        yield started


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
    status, content = send(port, "GET", f"/{name}")
    assert status == 200, content
    return content


def test_a_plugin_from_elsewhere_decides_and_pools_are_written_over_http(site: Path) -> None:
    """Its chain is replaced while the scheduler serves; a bad one is not taken; an emergency stop waits for no plugin.

    Pools and labels of the cluster file are followed.
    """
    vms = {"a": "bank", "b": "bank", "c": "none", "d": "ci"}
    cluster(site, vms, {"bank": {"maxUnits": 12}, "ci": {"maxUnits": 3}})
    config(site, "door")
    put(site / "says.json", {"bank": {"most": 6}})
    with pooling(site) as (program, port):
        a, b, c, d = (AskingAgent(port, name).settle() for name in "abcd")
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
        assert send(port, "DELETE", "/none") == (200, {"name": "none", "deleted": True})
        assert c.ask(3) == (2, ["pool"])
        page = fetch(port, "/metrics").decode()
        assert 'parley_scheduler_pool_units{field="held",pool="bank"} 6.0' in page
        assert 'parley_scheduler_pool_state{pool="none",state="unknown"} 1.0' in page

        config(site, "dor", "door", "door")
        (said,) = shown_blocking(
            "the faults", lambda: lines(program, "configuration not usable, the old one stays in force")
        )
        assert "pools.plugins[0].name" in said["error"]
        assert "pools.plugins[2].name" in said["error"]
        assert b.ask(5) == (4, ["pool"]), "the plugin of before is asked"
        put(site / "config.yaml", {"growth": {"stop": True}, "pools": {"plugins": [{"name": "nobody"}]}})
        shown_blocking("the stop", lambda: b'"stop":true' in fetch(port, "/v1/nodes/n1"))
        assert b.ask(5) == (4, ["stopped"])
        assert figure(port, "parley_scheduler_config_stale") == 1
        config(site)
        shown_blocking("no plugin, and no stop", lambda: b.ask(8) == (8, []))

        assert d.ask(5) == (3, ["pool"])
        cluster(site, vms, {"bank": {}, "ci": {"maxUnits": 4}})
        shown_blocking("the new limit of the file", lambda: d.ask(5) == (4, ["pool"]))
        cluster(site, vms | {"d": "other"}, {"bank": {}, "other": {}})
        shown_blocking("the other pool", lambda: d.ask(5) == (5, []))
        shown_blocking("the end of the pool", lambda: send(port, "GET", "/ci")[0] == 404)
        assert lines(program, "pool deleted")[-1]["pool"] == "ci"


def test_kills_and_restarts_keep_spec_generation_and_parking(site: Path) -> None:
    """One process has the state directory. Another chain asks again about what was parked."""
    cluster(site, {"a": "bank", "b": "full"}, {"bank": {"maxUnits": 9}, "full": {}})
    config(site, "door")
    put(site / "says.json", {"bank": {"wrong": "no such team"}, "full": {"most": 2}})
    state = ("--state", str(site / "state"))
    with pooling(site, *state) as (program, port):
        agent, full = AskingAgent(port).settle(), AskingAgent(port, "b").settle()
        assert send(port, "PUT", "/bank", {**pool(port), "limits": {"maxUnits": 7}})[1]["generation"] == 2
        assert agent.ask(3) == (1, ["pool-parked"])
        assert full.ask(5) == (2, ["pool"])
        stored = site / "state" / "pools.json"
        shown_blocking("the parking on disk", lambda: "no such team" in stored.read_text())
        uid = pool(port)["uid"]
        code, text = refused(site, "--cluster", str(site / "cluster.yaml"), *state)
        assert (code, "another scheduler keeps its pools there" in text) == (1, True)
        program.end(signal.SIGKILL)
    put(site / "says.json", {})
    with pooling(site, *state) as (program, port):
        agent, full = AskingAgent(port).settle(), AskingAgent(port, "b").settle()
        shown = pool(port)
        assert (shown["uid"], shown["generation"], shown["limits"]) == (uid, 2, {"maxUnits": 7})
        told = {each["type"]: each["reason"] for each in shown["status"]["conditions"]}
        assert (told["Parked"], told["FileIgnored"]) == ("AdmissionRejected", "StoredWins")
        assert agent.ask(3) == (1, ["pool-parked"])
        assert full.ask(5) == (5, []), "that it was full is not kept"
        assert (
            len(lines(program, "pool is described otherwise in the file; the stored description counts")) == 1
        )
        assert program.end() == 0
    config(site, "door", more=1)
    with pooling(site, *state, "--pool-writes-from-anywhere") as (program, port):
        agent = AskingAgent(port).settle()
        assert agent.ask(3) == (3, []), "another chain: what was parked is asked about again"
        assert pool(port)["generation"] == 2
        assert send(port, "POST", "", {"name": "x", "computeUnit": amount(1)})[0] == 201
        assert program.end() == 0
