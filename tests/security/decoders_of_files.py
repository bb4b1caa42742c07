"""Decoders of files and of other programs on the node: settings, journals, what is kept over a restart, the kernel's files, QEMU's answers and plugins'."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from agent.backends import simulated
from agent.backends.qemu import reading as qemu
from agent.backends.qemu.guest_files import GuestFiles
from agent.core.policies.saved import decoded
from agent.core.ports import BackendError
from agent.daemon.settings import AgentSettings
from agent.node.device_inventory import DeviceInventory
from agent.node.plugins.plugin_connection import PluginTold
from agent.node.plugins.ports import AnswerCheck, AnswerError
from agent.node.plugins.proto import (
    metricssource_v1_pb2,
    nodeplugin_v1_pb2,
    pluginregistration_pb2,
    policy_v1_pb2,
)
from agent.node.plugins.sdk import resizer_service
from agent.node.plugins.types import calls
from agent.node.qos import collectors, node_topology
from hosting.cgroups import group_files
from hosting.kubernetes import connection
from hosting.qmp import QmpError
from hosting.settings import Settings, SettingsError, parse, parse_json
from hosting.yaml_reader import NotYamlError
from hosting.yaml_reader import read as read_yaml
from informant.guest import cgroup, machine
from informant.guest.approvals import Approvals
from informant.guest.pod import node_bytes
from informant.settings import InformantSettings, NodeSettings
from scheduler.access.settings import AccessSettings
from scheduler.clusters.file import ClusterFile
from scheduler.permits.core import journal
from scheduler.permits.service import journal_files
from scheduler.permits.service.config_file import Config
from scheduler.placing.cycle.pages import FlagsBody
from scheduler.pools.entry import PoolEntry
from scheduler.pools.service import PoolStateFile
from scheduler.pools.shipped.http_service import read_token
from tests.security.decoders import Decoder, as_json, settled
from tests.security.decoders_of_messages import VM
from tests.tidy.repository import ROOT
from tests.unit.agent.driver import APART as LOAD_VM
from tests.unit.agent.test_load_files import HOW, UNIX_S, Watched
from tests.unit.scheduler_core.test_journal import RecordingWorld

_FILE: Final = Path("settings.yaml")


def example(name: str) -> bytes:
    return (ROOT / "examples" / name).read_bytes()


def settings(model: type[Settings]) -> Callable[[bytes], object]:
    return lambda content: parse(_FILE, content, model)


def body(model: type[Settings]) -> Callable[[bytes], object]:
    return lambda content: parse_json(_FILE, content, model)


def in_file(
    name: str, read: Callable[[Path], object], others: dict[str, bytes] | None = None
) -> Callable[[bytes], object]:
    """A decoder of a file of that name, in a directory with `others`, which `read` is given."""

    def decode(content: bytes) -> object:
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made)
            for each, text in {**(others or {}), name: content}.items():
                (directory / each).parent.mkdir(parents=True, exist_ok=True)
                (directory / each).write_bytes(text)
            return read(directory)

    return decode


# ------------------------------------------------------------ journals and kept state


def _journal() -> tuple[bytes, ...]:
    world = RecordingWorld()
    return tuple(line.encode() for line in world.lines[:1]) + as_json({"gap": 3})


def _journal_file(directory: Path) -> object:
    return [journal.read_line(each) for each in journal_files.lines(directory / "journal-000001.jsonl")]


def _approvals(directory: Path) -> object:
    return Approvals(directory, directory / "boot_id").load()


def _pool_file(directory: Path) -> object:
    file = PoolStateFile(directory)
    try:
        return file.load()
    finally:
        file.close()


def _guest_file(content: bytes) -> object:
    with tempfile.TemporaryDirectory() as made:
        files = GuestFiles(Path(made))
        files_path = next(Path(made).iterdir())
        (files_path / f"{VM.pod.namespace}.{VM.pod.name}.json").write_bytes(content)
        return files.read(VM)


POOL: Final = {
    "name": "p",
    "computeUnit": {"cpu": 1, "memory": "1Gi"},
    "limits": {"maxUnits": 8},
    "labels": {"a": "b"},
}
AMOUNT: Final = {"vcpu_milli": 1000, "memory_bytes": 2**30}

# ------------------------------------------------------------ QEMU


class _Monitor:
    """A monitor whose commands are answered with the members of an object, by the command's name."""

    def __init__(self, content: bytes) -> None:
        found = json.loads(content)
        self._answers = found if isinstance(found, dict) else {}

    async def execute(self, command: str, arguments: object = None) -> Any:
        del arguments
        return self._answers.get(command)


def _qmp(read: Callable[[Any], Any]) -> Callable[[bytes], object]:
    def decode(content: bytes) -> object:
        try:
            monitor = _Monitor(content)
        except (ValueError, RecursionError):  # the library of QEMU refuses it
            return None
        return settled(read(monitor))

    return decode


FACTS: Final = {
    "query-uuid": {"UUID": "00000000-0000-4000-8000-00000000000a"},
    "qom-get": {"size": 2**30, "slots": 4, "max-size": 2**33},
}
LOOK: Final = {
    "query-hotpluggable-cpus": [{"type": "x", "props": {"socket-id": 0, "core-id": 1}, "qom-path": "/machine/1"}],
    "query-memory-devices": [
        {"type": "dimm", "data": {"id": "d", "memdev": "/objects/m", "size": 2**30}},
        {"type": "virtio-mem", "data": {"id": "v", "size": 0, "requested-size": 0, "block-size": 2**21, "max-size": 2**30}},
    ],
    "query-memdev": [{"id": "parley-m"}],
}  # fmt: skip

# ------------------------------------------------------------ plugins


def protobuf(kind: type[Message], read: Callable[[Any], object]) -> Callable[[bytes], object]:
    """A decoder of a message that gRPC hands on; bytes that are none end the call in the library."""

    def decode(content: bytes) -> object:
        message = kind()
        try:
            message.ParseFromString(content)
        except (DecodeError, RuntimeError):
            return None
        return read(message)

    return decode


def _told(found: Any) -> object:
    told = PluginTold(found.type, found.name, found.endpoint, tuple(found.supported_versions))
    told.check()
    return told


def _amount(found: Any) -> object:
    check = AnswerCheck()
    amount = calls.amount_of(check, "size", found)
    check.end()
    return amount


SAMPLE: Final = metricssource_v1_pb2.ReadResponse(
    vm_uid=VM.pod_uid,
    age_s=1,
    load1=0.5,
    load5=0.5,
    cpu_busy_total_s=7,
    memory_total_bytes=8,
    memory_available_bytes=4,
)
GOAL: Final = policy_v1_pb2.GetGoalResponse(
    vm_uid=VM.pod_uid,
    cpu=policy_v1_pb2.ResourceGoal(
        units=2, reason="r", parts=[policy_v1_pb2.GoalPart(name="n", units=2, reason="r")]
    ),
    memory=policy_v1_pb2.ResourceGoal(units=3, reason="r"),
)
INFO: Final = pluginregistration_pb2.PluginInfo(
    type="Resizer", name="a.b", endpoint="/e", supported_versions=["v1"]
)

# ------------------------------------------------------------ the kernel

STAT: Final = b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"
MEMINFO: Final = b"MemTotal:       16 kB\nMemFree:         4 kB\nMemAvailable:    8 kB\n"
PRESSURE: Final = (
    b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
)
LOADAVG: Final = b"0.10 0.20 0.30 1/100 1234\n"
PROC: Final = {
    "stat": STAT,
    "meminfo": MEMINFO,
    "loadavg": LOADAVG,
    "pressure/cpu": PRESSURE,
    "vmstat": b"oom_kill 3\n",
}
GROUP: Final = {
    "memory.current": b"4096\n",
    "cpu.max": b"100000 100000\n",
    "memory.stat": b"file 12\n",
    "memory.events": b"high 1\n",
    "cgroup.freeze": b"0\n",
}


def _kubeconfig(directory: Path) -> object:
    credentials = connection.ApiCredentials(directory / "config", None, (directory / "other",))
    return connection._context(credentials)


FILES: Final = (
    Decoder(
        "YAML",
        read_yaml,
        (example("agent.yaml"), b"a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}\n"),
        (NotYamlError,),
        ("hosting/yaml_reader.py:read",),
    ),
    *(
        Decoder(
            f"settings: {model.__name__}",
            settings(model),
            examples,
            (SettingsError,),
            ("hosting/settings.py:check", "hosting/settings.py:_right_fields"),
        )
        for model, examples in (
            (AgentSettings, (example("agent.yaml"),)),
            (AccessSettings, (example("access.yaml"),)),
            (ClusterFile, (example("cluster.yaml"),)),
            (Config, (example("scheduler.yaml"), example("pool-plugins.yaml"))),
            (InformantSettings, (example("informant.yaml"),)),
            (NodeSettings, (example("node-informant.yaml"),)),
            (
                DeviceInventory,
                (
                    json.dumps(
                        {
                            "devices": [
                                {
                                    "type": "gpu",
                                    "minor": 0,
                                    "resources": {"koordinator.sh/gpu-core": 100},
                                    "inject": {"env": {"A": "b"}, "deviceNodes": ["/dev/x"]},
                                }
                            ]
                        }
                    ).encode(),
                ),
            ),
        )
    ),
    Decoder(
        "body of a pool",
        body(PoolEntry),
        as_json(POOL),
        (SettingsError,),
        ("hosting/settings.py:parse_json",),
    ),
    Decoder(
        "body of debug switches", body(FlagsBody), as_json({"scores": 4, "filters": True}), (SettingsError,)
    ),
    Decoder(
        "kubeconfig",
        in_file("config", _kubeconfig),
        (b"current-context: a\ncontexts: []\n",),
        connection._UNUSABLE,
        ("hosting/kubernetes/connection.py:_context",),
    ),
    Decoder(
        "line of a journal",
        lambda line: journal.read_line(line.decode("utf-8", "replace")),
        _journal(),
        (journal.JournalError,),
        (
            "scheduler/permits/core/journal.py:read_line",
            "scheduler/permits/core/journal.py:_read",
            "scheduler/permits/core/journal.py:_read_value",
        ),
    ),
    Decoder(
        "file of a journal",
        in_file("journal-000001.jsonl", _journal_file),
        (b'{"gap":1}\n{"gap":2}\n',),
        (journal.JournalError,),
        ("scheduler/permits/service/journal_files.py:lines",),
    ),
    Decoder(
        "pools' state",
        in_file("pools.json", _pool_file),
        as_json(
            {
                "format": 1,
                "chain": "c",
                "pools": [{"pool": {**POOL, "uid": "u", "generation": 1, "deleting": False}}],
            }
        ),
        (SettingsError,),
        ("scheduler/pools/service.py:PoolStateFile.load",),
    ),
    Decoder(
        "kept load",
        lambda content: decoded(content, LOAD_VM, HOW, 0.0, UNIX_S),
        (Watched().saved(),),
        (ValueError,),
        ("agent/core/policies/saved.py:decoded",),
    ),
    Decoder(
        "record of a QEMU guest",
        _guest_file,
        as_json({"generation": 4, "boot": "b", "target": AMOUNT, "ejects": [{"id": "d", "since_s": 1.0}]}),
        (BackendError,),
        ("agent/backends/qemu/guest_files.py:GuestFiles.read",),
    ),
    Decoder(
        "file of a simulated VM",
        simulated._decoded,
        as_json(
            {"generation": 1, "size": AMOUNT, "target": AMOUNT, "wanted": AMOUNT, "written_s": 1.0},
            {
                "generation": 1,
                "size_cpu": 1,
                "size_memory": 1,
                "target_cpu": 2,
                "target_memory": 2,
                "ready_at_s": 1.0,
            },
        ),
        (ValueError, RecursionError),
        ("agent/backends/simulated.py:_decoded",),
    ),
    Decoder(
        "agreed size",
        in_file("size.json", _approvals, {"boot_id": b"b\n"}),
        as_json({"vcpuMilli": 1000, "memoryBytes": 2**30, "hiddenBytes": 4, "bootId": "b"}),
        places=("informant/guest/approvals.py:Approvals.load",),
    ),
    Decoder(
        "generations of a plugin",
        in_file("g", lambda directory: resizer_service._read(directory / "g")),
        as_json({"u": 4}),
        (ValueError,),
        ("agent/node/plugins/sdk/resizer_service.py:_read",),
    ),
    Decoder(
        "token of an admission service",
        in_file("t", lambda directory: read_token(directory / "t")),
        (b"abcdef\n",),
        (ValueError,),
        ("scheduler/pools/shipped/http_service.py:read_token",),
    ),
    Decoder("facts of QEMU", _qmp(qemu.read_facts), as_json(FACTS), (QmpError,)),
    Decoder("look at QEMU", _qmp(partial(qemu.read_look, begun_s=0.0)), as_json(LOOK), (QmpError,)),
    Decoder(
        "sample of a plugin",
        protobuf(metricssource_v1_pb2.ReadResponse, lambda found: calls.sample_of(found, VM, 0.0)),
        (SAMPLE.SerializeToString(),),
        (AnswerError,),
    ),
    Decoder(
        "goal of a plugin",
        protobuf(policy_v1_pb2.GetGoalResponse, lambda found: calls.goal_of(found, VM, "p")),
        (GOAL.SerializeToString(),),
        (AnswerError,),
    ),
    Decoder(
        "amount of a plugin",
        protobuf(nodeplugin_v1_pb2.Resources, _amount),
        (nodeplugin_v1_pb2.Resources(cpu_milli=1, memory_bytes=2).SerializeToString(),),
        (AnswerError,),
    ),
    Decoder(
        "registration of a plugin",
        protobuf(pluginregistration_pb2.PluginInfo, _told),
        (INFO.SerializeToString(),),
        (AnswerError,),
    ),
    *(
        Decoder(
            f"/proc/{name}",
            in_file(name, lambda directory: machine.ProcSource(directory).read(), PROC),
            (content,),
            (OSError, ValueError),
            (
                "hosting/proc_files.py:cpu_time",
                "hosting/proc_files.py:memory",
                "informant/guest/machine.py:ProcSource.read",
                "informant/guest/machine.py:ProcSource._pressure",
                "informant/guest/machine.py:ProcSource._oom_kills",
            ),
        )
        for name, content in PROC.items()
    ),
    Decoder(
        "memory of the node",
        in_file("meminfo", lambda directory: node_bytes(directory / "meminfo")),
        (MEMINFO,),
        (OSError, ValueError),
        ("informant/guest/pod.py:node_bytes",),
    ),
    *(
        Decoder(
            f"cgroup {name}",
            in_file(name, lambda directory: cgroup.FileCgroup(directory).read(), GROUP),
            (content,),
            (OSError,),
            ("informant/guest/cgroup.py:FileCgroup._text",),
        )
        for name, content in GROUP.items()
    ),
    Decoder("number of a cgroup", group_files.number, (b"12\n",)),
    Decoder(
        "pressure of a cgroup",
        lambda content: group_files.stalls("cpu", content.decode(errors="replace")),
        (PRESSURE,),
        places=("hosting/cgroups/group_files.py:stalls",),
    ),
    Decoder(
        "CPUs of a group",
        in_file("cpuset.cpus", collectors._set_size),
        (b"0-3\n",),
        (),
        ("agent/node/qos/collectors.py:_set_size",),
    ),
    Decoder(
        "CPUs of the machine",
        in_file(
            "cpu/online", lambda directory: machine.MachineFiles(directory).cpus(), {"cpu/present": b"0-3\n"}
        ),
        (b"0-1\n",),
        (OSError, ValueError),
        ("informant/guest/machine.py:MachineFiles.cpus",),
    ),
    Decoder(
        "block size of the machine",
        in_file("memory/block_size_bytes", lambda directory: machine.MachineFiles(directory).memory()),
        (b"8000000\n",),
        (OSError, ValueError),
        ("informant/guest/machine.py:MachineFiles.memory",),
    ),
    Decoder(
        "CPUs of the host",
        in_file("devices/system/cpu/online", node_topology.read_cpus),
        (b"0-1\n",),
        (OSError, ValueError),
        ("agent/node/qos/node_topology.py:_online", "agent/node/qos/node_topology.py:_number"),
    ),
    Decoder(
        "mounts",
        in_file("mounts", lambda directory: cgroup.root(directory / "mounts")),
        (b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",),
        places=("informant/guest/cgroup.py:root",),
    ),
    Decoder(
        "own group",
        in_file("cgroup", lambda directory: cgroup.own_name(directory / "cgroup")),
        (b"0::/a\n",),
        places=("informant/guest/cgroup.py:own_name",),
    ),
)
