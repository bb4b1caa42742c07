"""Names that would lead elsewhere (path traversal, odd Unicode), and requests that two readers would take apart differently."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from agent.backends.change_log import vm_path
from agent.core.model import Vm
from agent.daemon.load_files import _name
from agent.node.plugins.plugin_connection import PluginTold
from agent.node.plugins.ports import AnswerError, is_plugin_name
from agent.node.qos.group_directory import parts_of
from agent.sources.file import VmSettings
from hosting.cgroups.tree import CgroupTree
from hosting.server import Reply, Request, Route
from hosting.settings import FaultsError, check
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PodName
from scheduler.pools.entry import PoolEntry
from tests.unit.hosting.raw_peers import serving

LEADING_ELSEWHERE: Final = (
    *(
        "../../etc/passwd",
        "..",
        ".",
        "/etc/passwd",
        "a/../b",
        "a/b",
        "a\0b",
        "a\nb",
        "..\u2215x",
        "\u202eabc",
        "a\u200bb",
    ),
    *("%2e%2e%2f", "..\\..\\x", "a" * 5000, "\ud800", "\ufeffa", "~root", "$(id)", "-rf", "\u0085"),
)
CU: Final = Resources(1000, 2**30)
AMOUNT: Final = {"cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize("name", LEADING_ELSEWHERE, ids=ascii)
def test_a_name_of_a_vm_leads_to_no_file_elsewhere(name: str) -> None:
    """It is refused, or its files lie in the folder itself."""
    entry: dict[str, Any] = {
        "namespace": "d", "name": name, "uid": name[:64], "informant": "http://127.0.0.1:1", "min": AMOUNT, "max": AMOUNT,
        "computeUnit": AMOUNT,
    }  # fmt: skip
    try:
        read = check(entry, VmSettings)
    except FaultsError:
        return
    folder = Path("/state/vms")
    vm = Vm(PodName(read.name, read.namespace), read.uid, Bounds(CU, CU), ComputeUnit(CU), 2**30)
    for path in (vm_path(folder, vm), folder / _name(vm)):
        assert path.parent == folder
        assert path.name not in {"", ".", ".."}
        assert "\0" not in path.name
        assert len(path.name.encode()) < 256


@pytest.mark.parametrize(
    "name", [each for each in LEADING_ELSEWHERE if each not in {"~root", "$(id)"}], ids=ascii
)
def test_a_name_of_a_pool_that_nobody_could_type_is_refused(name: str) -> None:
    with suppress(FaultsError):
        read = check({"name": name, "computeUnit": AMOUNT}, PoolEntry)
        assert "/" not in read.name
        assert read.name.isprintable()
        assert len(read.name) <= 253


@pytest.mark.parametrize(
    "name", [each for each in LEADING_ELSEWHERE if each not in {"..", ".", "-rf"}], ids=ascii
)
def test_a_name_of_a_plugin_is_refused(name: str) -> None:
    assert not is_plugin_name(name)
    if not name.isprintable() or len(name) > 300:
        with pytest.raises(AnswerError):
            PluginTold(name, name, "", ()).check()


@pytest.mark.parametrize("name", LEADING_ELSEWHERE, ids=ascii)
def test_a_name_of_a_control_group_or_a_uid_leads_out_of_no_tree(name: str, tmp_path: Path) -> None:
    assert CgroupTree(tmp_path).find(name) is None
    with suppress(ValueError):
        assert not {"", ".", ".."} & set(parts_of(name))
        assert "\0" not in name


async def _parts(request: Request) -> Reply:
    return Reply(200, repr((request.path, dict(request.parameters))).encode(), "text/plain")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/pods/../../etc", "/v1/pods/..%2f..%2fetc/x", "/v1/pods/%2e%2e/%2e%2e", "/v1/pods/a%00b/c"),
        *("/v1/pods/%ed%a0%80/x", "/v1/pods/%e2%80%ae/x", "//v1/pods/a/b", "/v1/pods/a/b/", "/v1//pods/a/b"),
        *("/V1/PODS/a/b", "/v1/pods/a/b;x=1", "/v1/pods/a\\..\\b", "http://other/v1/pods/a/b"),
    ],
)
async def test_a_path_names_two_parts_of_a_pod_and_nothing_else(path: str) -> None:
    """A part is what stands between two slashes; it is looked up among names, and is no path to anything."""
    async with serving(Route("GET", "/v1/pods/{namespace}/{name}", _parts)) as running:
        wire = await running.connect()
        await wire.send(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        answer = await wire.rest()
        assert answer.split(b" ")[1] in {b"200", b"400", b"404"}
        assert await running.is_alive()


SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
WELL_FRAMED: Final = b"Content-Length: 0\r\n\r\n"
FRAMED: Final[dict[str, bytes]] = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 34\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 34\r\n\r\n",
    "a length with a sign": b"Content-Length: +0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length in hexadecimal": b"Content-Length: 0x0\r\n\r\n",
    "a length with odd digits": "Content-Length: \u0660\r\n\r\n".encode(),
    "an encoding that is not the last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an encoding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an encoding that is not known": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "an encoding after a tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": b"Content-Length : 34\r\n\r\n",
    "a folded header": b"X: a\r\n Content-Length: 34\r\n\r\n",
    "a chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
    "a chunk size in another notation": b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "a chunk that ends with LF alone": b"Transfer-Encoding: chunked\r\n\r\n0\n\n",
    "headers that end with LF alone": b"Content-Length: 34\nX: y\n\n",
    "a NUL in a header": b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a CR in a header": b"X: a\rContent-Length: 34\r\n\r\n",
}


@pytest.mark.parametrize("head", [WELL_FRAMED, *FRAMED.values()], ids=["good", *FRAMED])
async def test_a_request_of_two_meanings_is_refused_or_ends_its_connection(head: bytes) -> None:
    """A proxy may have read another end of it: what follows must not be taken for a request of the same caller."""
    reached: list[str] = []

    async def smuggled(request: Request) -> Reply:
        reached.append(request.path)
        return Reply()

    async with serving(Route("GET", "/smuggled", smuggled)) as running:
        wire = await running.connect()
        await wire.send(b"POST /echo HTTP/1.1\r\nHost: test\r\n" + head + SMUGGLED)
        wire.writer.write_eof()
        answer = await wire.rest()
        assert reached == (["/smuggled"] if head == WELL_FRAMED else []), answer
        assert await running.is_alive()
