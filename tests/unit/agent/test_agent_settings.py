"""The settings file."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.backends.qemu.core.state import GuestRules
from agent.core.model import VmKind
from agent.core.policies.combined import PluginPolicy
from agent.daemon.policies import build, standard
from agent.daemon.settings import AgentSettings
from agent.program import main
from hosting.settings import SettingsError, parse
from tests.support.amounts import GIB, cu

GOOD = """
node: node-a
scheduler: http://127.0.0.1:10299/
stateDirectory: /tmp/parley
vms:
  - {namespace: default, name: a, uid: u1, informant: "http://127.0.0.1:10301",
     min: {cpu: 250m, memory: 512Mi}, max: {cpu: 4, memory: 4Gi}, computeUnit: {cpu: 1, memory: 1Gi}}
"""
BAD = """
node: ""
scheduler: ftp://x
stateDirectory: /tmp/parley
colour: red
periods: {tick: 26}
policies:
- {name: utilisation, args: {cpuTarget: 75}}
- {name: load-average, args: {high: 0.9, low: 0.5}, colour: red}
windows: [{name: night}]
vms:
  - {namespace: default, name: a, uid: u1, informant: nowhere,
     min: {cpu: 250m, memory: 512Mi}, max: {cpu: 4, memory: 4Gi}, computeUnit: {cpu: 1, memory: 1Gi}}
  - {namespace: default, name: a, uid: u1, informant: "http://h:1",
     min: {cpu: 8, memory: 512Mi}, max: {cpu: 4, memory: 4Gi}, computeUnit: {cpu: 1, memory: 1Gi}}
  - {namespace: default, name: c, uid: u1, informant: "http://h:1",
     min: {cpu: 1, memory: 512Mi}, max: {cpu: 4, memory: 4Gi}, computeUnit: {cpu: 0, memory: 1Gi}}
"""


def _faults(content: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(Path("agent.yaml"), content.encode(), AgentSettings)
    return caught.value.faults


def test_a_good_file_gives_vms_in_exact_amounts() -> None:
    read = parse(Path("agent.yaml"), GOOD.encode(), AgentSettings)
    vm = read.vms[0].spec().vm
    assert (vm.bounds.min, vm.bounds.max, vm.unit.step, vm.slot_bytes) == (cu(0.25, 0.5), cu(4), cu(1), GIB)
    assert (read.timing().tick_s, read.timing().hold_s) == (15.0, 30.0)


def test_every_fault_is_named_at_once() -> None:
    found = _faults(BAD)
    assert {fault.partition(": ")[0] for fault in found} >= {
        "node", "scheduler", "colour", "periods.tick", "windows[0].from", "vms[0].informant",
    }  # fmt: skip
    for fault in (
        "policies[0].args.cpuTarget: must be a number from 0.01 to 1 with at most six decimals, such as 0.75 (found 75)",
        "policies[1].colour: there is no such setting",
        "policies[1].args.low: must be at most half of high: 0.5 is above 0.45",
        "vms[1].min: must not exceed max in either resource: 8 CPU / 512Mi does not fit in 4 CPU / 4Gi",
    ):
        assert fault in found
    text = "\n".join(found)
    assert "vms[2].computeUnit: must be above zero in both resources" in text
    assert "'default/a' is used more than once" in text


def test_a_rule_is_told_beside_the_faults_of_other_fields() -> None:
    entry = GOOD.replace("cpu: 250m", "cpu: 8").replace("uid: u1", "uid: 5, slotSize: 0")
    assert [fault.partition(": ")[0] for fault in _faults(entry)] == [
        "vms[0].uid",
        "vms[0].slotSize",
        "vms[0].min",
    ]


@pytest.mark.parametrize("value", ["true", "'0.5'", "1:30", "null", ".nan", ".inf", "-1"])
@pytest.mark.parametrize("path", ["periods.tick", "periods.metrics", "resizeDelay"])
def test_seconds_are_numbers_and_nothing_else(path: str, value: str) -> None:
    name, _, key = path.partition(".")
    (fault,) = _faults(f"{GOOD}{name}: {f'{{{key}: {value}}}' if key else value}\n")
    assert fault.startswith(f"{path}: must be ")


def test_a_back_end_that_does_not_exist_is_refused_with_those_that_do() -> None:
    (fault,) = _faults(f"{GOOD}backend: abacus\n")
    assert fault.startswith("backend: must be one of kubernetes, qemu, simulated")


HEAD = "node: n\nscheduler: http://127.0.0.1:10299/\nstateDirectory: /tmp/x\n"


def test_guests_of_qemu_are_whole_and_every_fault_of_theirs_is_told() -> None:
    wrong = """
    [{namespace: d, name: a, uid: u, informant: "http://h:1", min: {cpu: 500m, memory: 512Mi}, max: {cpu: 4, memory: 1Gi},
      computeUnit: {cpu: 1, memory: 100Mi}},
     {namespace: d, name: b, uid: u, informant: "ftp://h:1", qmp: b.sock, min: {cpu: 1, memory: 512Mi}, max: {cpu: 4, memory: 1Gi},
      computeUnit: {cpu: 1, memory: 256Mi}, slotSize: 128Mi},
     {namespace: d, name: c, uid: u, informant: "http://h:1", qmp: /c.sock, min: {cpu: 1, memory: 512Mi}, max: {cpu: 4, memory: 1Gi},
      computeUnit: {cpu: 1, memory: 256Mi}, slotSize: 192Mi}]
    """
    assert [fault.partition(" (found")[0] for fault in _faults(f"{HEAD}backend: qemu\nvms: {wrong}")] == [
        "vms[1].informant: must be a URL such as http://127.0.0.1:10301, its port from 1 to 65535 (informants speak no https)",
        "vms[1].qmp: must be the absolute path of a socket, of at most 107 bytes",
        "vms[0].qmp: is needed by the back end qemu: the socket of the guest's QMP",
        "vms[0].computeUnit.memory: must be a multiple of 128Mi, not 100Mi",
        "vms[0].min.cpu: must be whole vCPUs, not 500m",
        "vms[0].min.memory: must be whole slots of 100Mi, not 512Mi",
        "vms[0].max.memory: must be whole slots of 100Mi, not 1Gi",
        "vms[2].slotSize: must be a multiple of 128Mi, not 192Mi",
        "vms[2].min.memory: must be whole slots of 192Mi, not 512Mi",
        "vms[2].max.memory: must be whole slots of 192Mi, not 1Gi",
        "vms[2].computeUnit.memory: must be whole slots of 192Mi, not 256Mi",
    ]


def test_nothing_else_resizes_the_guests_of_qemu() -> None:
    (fault,) = _faults(f"{HEAD}backend: qemu\nplugins: {{directory: /tmp/p, resizer: r}}")
    assert fault.startswith("plugins.resizer: must be left out where the backend is qemu")


def test_two_vms_cannot_have_one_guest() -> None:
    bounds = "min: {cpu: 1, memory: 512Mi}, max: {cpu: 4, memory: 1Gi}, computeUnit: {cpu: 1, memory: 128Mi}"
    vms = ", ".join(
        f'{{namespace: d, name: {name}, uid: u, informant: "http://h:1", qmp: {path}, {bounds}}}'
        for name, path in (("a", "/a.sock"), ("b", "/b.sock"), ("c", "/a.sock"))
    )
    (fault,) = _faults(f"{HEAD}backend: qemu\nvms: [{vms}]")
    assert fault == "vms[2].qmp: '/a.sock' is used more than once"


def test_a_socket_of_qmp_goes_with_its_back_end_and_tells_what_the_vm_is() -> None:
    entry = """[{namespace: d, name: a, uid: u, informant: "http://h:1", qmp: /a.sock, min: {cpu: 1, memory: 512Mi},
      max: {cpu: 4, memory: 1Gi}, computeUnit: {cpu: 1, memory: 256Mi}, slotSize: 128Mi}]"""
    (fault,) = _faults(f"{HEAD}vms: {entry}")
    assert fault == "vms[0].qmp: goes with the back end qemu only"
    text = f"{HEAD}backend: qemu\nqemu: {{unplugCpus: true, silence: 1.5}}\nvms: {entry}"
    read = parse(Path("agent.yaml"), text.encode(), AgentSettings)
    (spec,) = [vm.spec() for vm in read.vms]
    assert (spec.qmp, spec.vm.kind, spec.vm.slot_bytes) == ("/a.sock", VmKind.QEMU, 128 * 2**20)
    assert read.qemu.guest_rules() == GuestRules(unplugs_cpus=True, silence_s=1.5)


def test_urls_are_told_apart_by_who_speaks_what() -> None:
    read = parse(
        Path("agent.yaml"), GOOD.replace("http://127.0.0.1:10299/", "https://s:1/").encode(), AgentSettings
    )
    assert read.scheduler.url == "https://s:1/"
    (fault,) = _faults(GOOD.replace("http://127.0.0.1:10301", "https://127.0.0.1:10301"))
    assert "vms[0].informant: must be a URL such as http://127.0.0.1:10301" in fault
    for wrong in ("http://s:99999/", "http://s:0/", "http://[::1/", "http://s\\u0007/", "http:///"):
        (fault,) = _faults(GOOD.replace("http://127.0.0.1:10299/", f'"{wrong}"'))
        assert fault.startswith("scheduler: must be a URL"), fault


@pytest.mark.parametrize("advertise", ["10.0.0.7", '"[fd00::7]:31000"', '"fd00::7"', "eth0"])
def test_what_informants_are_told_to_call_is_a_setting(advertise: str) -> None:
    read = parse(Path("agent.yaml"), f"{GOOD}advertise: {advertise}\n".encode(), AgentSettings)
    assert read.advertise == advertise.strip('"')


def test_a_wildcard_to_listen_on_is_refused_with_the_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosting.logs.configure", lambda *_: None)  # of the whole process
    file = tmp_path / "agent.yaml"
    file.write_text(GOOD)
    done = CliRunner().invoke(main, ["--config", str(file), "--host", "0.0.0.0"])
    assert done.exit_code == 2
    assert "--host 0.0.0.0 is a wildcard" in done.output
    assert "--advertise" in done.output


@pytest.mark.parametrize(
    ("tls", "faults"),
    [
        ("{ca: /a}", []),
        ("{certificate: /c, key: /k, port: 10302}", []),
        ("{certificate: /c}", ["belong together"]),
        ("{key: /k, port: 10302}", ["belong together", "port: needs a certificate"]),
        ("{certificate: /c, key: /k, port: 99999}", ["tls.port"]),
    ],
)
def test_the_files_of_tls_go_together(tls: str, faults: list[str]) -> None:
    content = f"{GOOD}tls: {tls}\n"
    if not faults:
        parse(Path("agent.yaml"), content.encode(), AgentSettings)
        return
    text = "\n".join(_faults(content))
    assert all(fault in text for fault in faults), text


ON_KUBERNETES = """
node: node-a
scheduler: {service: parley-system/parley-scheduler}
stateDirectory: /tmp/parley
source: kubernetes
backend: kubernetes
"""


def test_on_kubernetes_the_node_comes_from_the_environment_and_the_scheduler_from_its_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = parse(Path("agent.yaml"), ON_KUBERNETES.encode(), AgentSettings)
    assert (read.node, read.scheduler.service, read.scheduler.port) == (
        "node-a",
        "parley-system/parley-scheduler",
        10299,
    )
    assert (read.is_on_kubernetes, read.schedulers) == (True, ())
    without = ON_KUBERNETES.replace("node: node-a\n", "")
    assert _faults(without) == ["node: is required"]
    monkeypatch.setenv("NODE_NAME", "node-b")
    assert parse(Path("agent.yaml"), without.encode(), AgentSettings).node == "node-b"
    assert parse(Path("agent.yaml"), ON_KUBERNETES.encode(), AgentSettings).node == "node-a"


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("{service: parley-system/parley-scheduler}", "{}", "scheduler"),
        ("{service: parley-system/parley-scheduler}", "7", "scheduler"),
        ("{service", "{url: 'http://s:1/', service", "scheduler"),
        ("{service: parley-system/parley-scheduler}", "{service: parley-scheduler}", "scheduler.service"),
        ("{service: parley-system/parley-scheduler}", "{url: nowhere}", "scheduler.url"),
        ("-scheduler}", "-scheduler, tokenFile: /t}", "scheduler.tokenFile"),
        (
            "{service: parley-system/parley-scheduler}",
            "{url: 'http://s:1/', tokenFile: /t}",
            "scheduler.tokenFile",
        ),
        (
            "{service: parley-system/parley-scheduler}",
            "{url: 'http://s:1/', serverName: s}",
            "scheduler.serverName",
        ),
        ("-scheduler}", "-scheduler, serverName: 'a b'}", "scheduler.serverName"),
        (
            "-scheduler}",
            "-scheduler, serverName: s, tokenFile: /t}\notherSchedulers: ['http://s:1/']",
            "otherSchedulers[0]",
        ),
        ("source: kubernetes", "source: file", "backend"),
        ("backend: kubernetes", "backend: simulated", "backend"),
    ],
)
def test_what_of_kubernetes_does_not_go_together_is_told(before: str, after: str, path: str) -> None:
    (fault,) = _faults(ON_KUBERNETES.replace(before, after))
    assert fault.startswith(f"{path}: "), fault


@pytest.mark.parametrize(
    ("scheduler", "scheme"),
    [
        ("{service: a/b}", "http"),
        ("{service: a/b, serverName: b.a.svc, tokenFile: /t}", "https"),
        ("{url: 'https://10.0.0.1/', serverName: b.a.svc, tokenFile: /t}", "https"),
        ("{url: 'http://127.0.0.1:1/', tokenFile: /t}", "http"),
    ],
)
def test_a_token_travels_encrypted_or_on_this_machine(scheduler: str, scheme: str) -> None:
    text = ON_KUBERNETES.replace("{service: parley-system/parley-scheduler}", scheduler)
    assert parse(Path("agent.yaml"), text.encode(), AgentSettings).scheduler.scheme == scheme


def test_a_node_metric_needs_kubernetes() -> None:
    (fault,) = _faults(f"{GOOD}qos: {{nodeMetric: true}}\n")
    assert fault == "qos.nodeMetric: needs the source kubernetes"


def test_a_node_topology_needs_kubernetes() -> None:
    (fault,) = _faults(f"{GOOD}qos: {{nodeTopology: true}}\n")
    assert fault == "qos.nodeTopology: needs the source kubernetes"


def test_a_list_of_vms_beside_kubernetes_is_refused() -> None:
    (fault,) = _faults(f"{GOOD}source: kubernetes\nbackend: kubernetes\n")
    assert fault == "vms: must be left out where the source is kubernetes"


@pytest.mark.parametrize(
    ("written", "faults"),
    [
        ("plugins: {metrics: a}", ["plugins.metrics: needs plugins.directory, where the plugin registers"]),
        (
            "plugins: {directory: plugins, deadline: 5, maxCalls: 0}",
            [
                "plugins.directory: must be an absolute path, such as /var/lib/parley/plugins_registry (found 'plugins')",
                "plugins.deadline: must be at most 4 (found 5)",
                "plugins.maxCalls: must be at least 1 (found 0)",
            ],
        ),
        ("policies: ['plugin:a']", ["policies[0]: policy 'plugin:a': needs plugins.directory in the agent's settings"]),
        (
            "{plugins: {directory: /run/p}, policies: ['plugin:']}",
            ["policies[0]: policy 'plugin:': the plugin's name must be 1 to 128 letters, digits"],
        ),
        ("qos: {cgroupRoot: sys, interval: 0}", ["qos.cgroupRoot: must be an absolute path", "qos.interval: must be at least 0.1"]),
        (
            "qos: {featureGates: {CPUSuppress: true, CPUBurst: false}, interval: 15}",
            ["qos.interval: must be at most qos.args.CPUSuppress.window, which is 10 (found 15)"],
        ),
        (
            "qos: {featureGates: {CPUBurst: [], CPUSupress: true}, recommendOnly: [X], args: {CPUBurst: {colour: red}}}",
            [
                "qos.args.CPUBurst.colour: there is no such setting",
                "qos.featureGates.CPUBurst: must be true or false (found '[]')",
                "qos.featureGates.CPUSupress: there is no such feature gate (there are: ",
                "qos.recommendOnly[0]: there is no QoS plugin 'X' (there are: ",
            ],
        ),
    ],
)  # fmt: skip
def test_plugins_and_strategies_are_checked_at_once(written: str, faults: list[str]) -> None:
    more = written[1:-1].replace("}, p", "}\np") if written.startswith("{") else written
    found = _faults(f"{GOOD}{more}\n")
    assert len(found) == len(faults), found
    assert all(fault.startswith(told) for fault, told in zip(found, faults, strict=True)), found


def test_a_policy_may_be_a_plugin_where_plugins_have_a_directory() -> None:
    more = "plugins: {directory: /run/plugins}\npolicies: [utilisation, {name: 'plugin:acme.com-queue', args: {depth: 9}}]\n"
    read = parse(Path("agent.yaml"), (GOOD + more).encode(), AgentSettings)
    assert build(read.policies, standard(has_plugins=True)).plugins == (
        PluginPolicy("acme.com-queue", {"depth": 9}),
    )


def test_a_file_with_a_fault_in_an_annotation_is_not_taken_up_so_the_last_one_counts_on() -> None:
    bounds = """'{"max": {"memory": "lots"}}'"""
    entry = GOOD.replace(
        "cpu: 1, memory: 1Gi}}", f"cpu: 1, memory: 1Gi}}, annotations: {{parley.dev/bounds: {bounds}}}}}"
    )
    (fault,) = _faults(entry)
    assert fault.startswith("vms[0].annotations: parley.dev/bounds: max.memory: 'lots' is not a quantity")


def test_each_vm_may_have_a_secret_of_its_own() -> None:
    def told(*files: str) -> str:
        amounts = "min: {cpu: 1, memory: 1Gi}, max: {cpu: 4, memory: 4Gi}, computeUnit: {cpu: 1, memory: 1Gi}"
        lines = (
            f'- {{namespace: d, name: vm-{file[-1]}{number}, uid: u, informant: "http://h:1", secretFile: {file}, {amounts}}}'
            for number, file in enumerate(files)
        )
        return "\n".join([GOOD.partition("vms:")[0] + "vms:", *lines])

    read = parse(Path("agent.yaml"), told("/run/a", "/run/b").encode(), AgentSettings)
    assert [each.spec().secret_file for each in read.vms] == ["/run/a", "/run/b"]
    assert parse(Path("agent.yaml"), GOOD.encode(), AgentSettings).vms[0].spec().secret_file == ""
    assert _faults(told("/run/a", "/run/a")) == ["vms[1].secretFile: '/run/a' is used more than once"]
    assert _faults(told("run/a")) == [
        "vms[0].secretFile: must be the absolute path of a file (found 'run/a')"
    ]


@pytest.mark.parametrize(
    ("kubernetes", "base", "socket"),
    [
        ("{}", "unix:/run/parley/informant.sock:", "/run/parley/agent.sock"),
        ("{informant: 'unix:/a.sock', callbackSocket: /b.sock}", "unix:/a.sock:", "/b.sock"),
        ("{informant: 'http://127.0.0.1:10302'}", "http://127.0.0.1:10302", None),
    ],
)
def test_a_node_informant_is_at_a_socket_or_at_a_port(kubernetes: str, base: str, socket: str | None) -> None:
    content = (
        f"{GOOD.partition('vms:')[0]}source: kubernetes\nbackend: kubernetes\nkubernetes: {kubernetes}\n"
    )
    read = parse(Path("agent.yaml"), content.encode(), AgentSettings)
    assert (read.kubernetes.informant_base, read.callback_socket) == (base, socket)


@pytest.mark.parametrize("url", ["unix:a.sock", "unix:/a:b", "https://h:1", "unix:/" + 107 * "a"])
def test_no_other_address_of_a_node_informant_is_taken(url: str) -> None:
    (fault,) = _faults(f"{GOOD}kubernetes: {{informant: '{url}'}}\n")
    assert fault.startswith("kubernetes.informant: must be ")


def test_an_agent_with_its_list_of_vms_makes_no_socket() -> None:
    assert parse(Path("agent.yaml"), GOOD.encode(), AgentSettings).callback_socket is None
