"""docs/guides/plugins.md and docs/reference/node-plugins.md say what holds: its names, its imports, its figures and the texts of errors that it quotes."""

import re

import pytest

from agent.daemon.node_plugins import MAX_LISTED
from agent.daemon.node_settings import PluginSettings
from agent.node.plugins import plugin_connection
from agent.node.plugins.core import sockets
from agent.node.plugins.plugin_connection import MAX_PATH_BYTES
from agent.node.plugins.ports import MAX_TEXT
from agent.node.plugins.registrar import RegistrationLimits
from agent.node.plugins.types.calls import MAX_AGE_S, MAX_PARTS, PluginLimits
from agent.node.qos.config import QOS_PLUGIN_GROUP
from agent.node.qos.core.actions import MAX_DECISIONS
from agent.node.qos.core.lifecycle import LifecycleTiming
from hosting.fault_log import ALIKE
from hosting.kubernetes import names
from parley import node_plugins
from tests.processes.pages import files
from tests.tidy.repository import ROOT

PAGE = (ROOT / "docs/guides/plugins.md").read_text()

SEED_003 = [
    "ActualStateOfWorld",
    "NewActualStateOfWorld",
    "DesiredStateOfWorld",
    "NewDesiredStateOfWorld",
    "PluginHandler",
    "PluginInfo",
    "PluginInfo.GenerateMsg",
    "PluginInfo.GenerateMsgDetailed",
    "PluginInfo.GenerateError",
    "PluginInfo.GenerateErrorDetailed",
    "AddPlugin",
    "RemovePlugin",
    "GetRegisteredPlugins",
    "PluginExistsWithCorrectTimestamp",
    "AddOrUpdatePlugin",
    "GetPluginsToRegister",
    "PluginExists",
    "ValidatePlugin",
    "RegisterPlugin",
    "DeRegisterPlugin",
]
SEED_002 = [
    "ExtensionPlugin",
    "InitFlags",
    "Setup",
    "Run",
    "Stop",
    "RegisterQOSExtPlugin",
    "SetupPlugins",
    "StartPlugins",
    "QOSManager",
    "QOSExtensionConfig",
    "FeatureGates",
    "RegisterCallbacks",
    "SendCallback",
    "UpdateCbFn",
    "metriccache.MetricCache",
    "statesinformer.StatesInformer",
    "clientset.Interface",
]


def rows(first: str) -> list[list[str]]:
    """The rows below the header whose first cell is `first`, as cells."""
    lines = iter(PAGE.splitlines())
    next(line for line in lines if line.startswith(f"| {first} |"))
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_name_of_the_seeds_is_in_the_table_and_nothing_else() -> None:
    assert sorted(name for row in rows("Seed") for name in code(row[0])) == sorted(SEED_003 + SEED_002)


@pytest.mark.parametrize("row", rows("Seed"), ids=lambda row: str(code(row[0])[0]))
def test_every_name_of_ours_in_the_table_is_where_the_row_says(row: list[str]) -> None:
    sources = "".join((ROOT / path).read_text() for path in code(row[2]))
    names = [name for name in code(row[1]) if name != QOS_PLUGIN_GROUP]
    missing = [name for name in names if re.search(rf"\b{name}\b", sources) is None]
    assert names
    assert missing == []


def test_the_code_imports_nothing_else_of_parley() -> None:
    pattern = r"^(?:from|import) ((?:parley|scheduler|hosting|protocol|agent|informant)\b\S*)"
    programs = [text for name, text in files(PAGE).items() if name.endswith(".py")]
    found = {name for text in programs for name in re.findall(pattern, text, re.MULTILINE)}
    assert found == {"parley.node_plugins"}


def test_the_classes_of_authors_are_offered() -> None:
    named = [name for row in rows("Base class") for name in code(row[0])]
    assert len(named) == 3
    assert [name for name in named if not hasattr(node_plugins, name)] == []


def test_the_figures_are_those_of_the_code() -> None:
    prose = " ".join(PAGE.split())
    settings, timing = PluginSettings(), LifecycleTiming()
    for sentence in (
        f"`plugins.deadline`, {settings.deadline:g} s",
        f"`plugins.maxCalls` ({settings.max_calls})",
        f"at most {MAX_AGE_S:g} s old",
        f"at most {MAX_PATH_BYTES} bytes",
        f"the last {MAX_DECISIONS} decisions",
        f"`stuck` after {timing.end_s:g} s",
        f"started again after {timing.retry_base_s:g} s, then later and later, up to {timing.retry_cap_s:g} s",
        f"`{QOS_PLUGIN_GROUP}`",
    ):
        assert sentence in prose, sentence


@pytest.fixture(scope="module")
def texts() -> str:
    """The texts of the program, with what is filled in left out and lines of a text put together."""
    sources = [path.read_text() for part in ("agent", "hosting") for path in (ROOT / part).rglob("*.py")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))


def test_the_errors_that_the_page_quotes_are_those_of_the_code(texts: str) -> None:
    """Each piece of a quoted text between what is filled in stands in a source."""
    quoted = [text for row in rows("What you see") for text in code(row[0]) if " " in text]
    assert len(quoted) > 12
    filled = r"…|: |; |, |'v1'|1 s$|107|/var/\S+|connection refused"
    pieces = {piece.strip(" ,:()") for text in quoted for piece in re.split(filled, text)} - {""}
    assert [piece for piece in sorted(pieces) if piece not in texts] == []


def test_the_figures_of_the_page_on_sockets_are_those_of_the_code() -> None:
    prose = " ".join((ROOT / "docs/reference/node-plugins.md").read_text().split())
    settings, registering, calling = PluginSettings(), RegistrationLimits(), PluginLimits()
    for sentence in (
        f"dialled for up to {registering.dial_s:g} s",
        f"{plugin_connection.DIALS} sockets are dialled at once",
        f"the first turn of a socket takes {plugin_connection.FIRST_TURN_S:g} s",
        f"(up to {plugin_connection.PATIENT} sockets at the same time)",
        f"At most {sockets.STARTS} registrations begin in one pass",
        f"Of more than {ALIKE} sockets with the same fault",
        f"list up to {MAX_LISTED} sockets",
        f"a `type` and a `name` have at most {plugin_connection.MAX_LABEL} printable characters",
        f"at most {plugin_connection.MAX_VERSIONS} versions of at most {plugin_connection.MAX_VERSION} printable characters",
        f"An `endpoint` has at most {plugin_connection.MAX_ENDPOINT_BYTES} bytes",
        f"at most {MAX_PATH_BYTES} bytes where it is made",
        f"`GetInfo` {registering.get_info_s:g} s, `NotifyRegistrationStatus` {registering.notify_s:g} s",
        f"`Describe` {calling.register_deadline_s:g} s, all others `plugins.deadline` ({settings.deadline:g} s;",
        f"`plugins.maxCalls` ({settings.max_calls}) at a time",
        f"A reading is at most {MAX_AGE_S:g} s old",
        f"at most {MAX_PARTS} parts",
        f"A text has at most {MAX_TEXT} characters",
        f"`command_deadline_s` is at most {calling.command_deadline_s:g}",
    ):
        assert sentence in prose, sentence


def test_the_page_on_sockets_names_every_file_and_every_call_that_a_plugin_is_built_from() -> None:
    page = (ROOT / "docs/reference/node-plugins.md").read_text()
    protos = sorted((ROOT / "agent/node/plugins/proto").glob("*.proto"))
    assert len(protos) == 7
    for proto in protos:
        assert f"`{proto.relative_to(ROOT)}`" in page
        for call in re.findall(r"^ +rpc (\w+)\(", proto.read_text(), re.MULTILINE):
            assert re.search(rf"`(?:\w+\.)?{call}`", page), call


def test_what_stays_after_an_uninstallation_is_named() -> None:
    page = (ROOT / "docs/guides/operating.md").read_text()
    told = page[page.index("**Uninstall.**") : page.index("**What to watch.**")]
    for left in (
        names.DENIED,
        names.CGROUP_MISMATCH,
        names.ROOM_FREED,
        names.FENCE,
        names.RESERVATION,
        names.MANAGED,
    ):
        assert f"`{left}`" in told
    for left in re.findall(r"path: (/var/lib/[^,}]+)", _deployed()):
        assert f"`{left}`" in told, left


def _deployed() -> str:
    return "".join(path.read_text() for path in (ROOT / "deploy").rglob("*.yaml"))
