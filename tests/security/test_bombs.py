"""Small content that would become much: YAML bombs in each file that is read, packed bodies, deep JSON, floods of headers.

Each is refused with a text that stays short, and costs neither memory nor time beyond its own size.
"""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from agent.daemon.settings import AgentSettings
from agent.node.device_inventory import DeviceInventory
from hosting.server import Reply, Request, Route
from hosting.settings import Settings, SettingsError, parse
from informant.settings import InformantSettings, NodeSettings
from scheduler.clusters.file import ClusterFile
from scheduler.permits.service.config_file import Config
from tests.unit.hosting.raw_peers import request_bytes, serving

FILES: Final = (AgentSettings, ClusterFile, Config, DeviceInventory, InformantSettings, NodeSettings)


def _aliases(levels: int = 30, width: int = 9) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * width)}]" for each in range(1, levels)]
    return "\n".join(lines)


def _merges(levels: int = 30) -> str:
    lines = ["a0: &a0 {k0: x}"]
    lines += [
        f"a{each}: &a{each} {{k{each}: x, <<: [*a{each - 1}, *a{each - 1}]}}" for each in range(1, levels)
    ]
    return "\n".join(lines)


def _chain(links: int = 5000) -> str:
    """Each alias is one level deeper than the one before; written, nothing nests."""
    lines = ["a0: &a0 [x]", *(f"a{each}: &a{each} [*a{each - 1}]" for each in range(1, links))]
    return "\n".join([*lines, f"vms: *a{links - 1}", f"nodes: *a{links - 1}", f"devices: *a{links - 1}"])


YAML: Final[dict[str, str]] = {
    "aliases": _aliases(),
    "merge keys": _merges(),
    "a chain of aliases": _chain(),
    "an alias of itself": "a: &a [*a]",
    "a merge of itself": "a: &a {<<: *a}",
    "deep nesting": "a: " + "[" * 200_000,
    "deep mappings": "\n".join(" " * each + "a:" for each in range(1000)),
    "a huge scalar": "a: '" + "x" * 1_000_000 + "'",
    "a huge key": "'" + "x" * 1_000_000 + "': 1",
    "a huge explicit key": "? '" + "x" * 1_000_000 + "'\n: 1",
    "a huge number": "a: " + "9" * 1_000_000,
    "a huge hexadecimal number": "a: 0x" + "f" * 1_000_000,
    "a huge key that is a number": "0x" + "f" * 1_000_000 + ": 1\n" + "0x" + "f" * 1_000_000 + ": 1",
    "many documents": "---\na: 1\n" * 100_000,
    "many keys that are one": "a: 1\n" * 5000,
    "many wrong keys": "\n".join(f"k{each}: 1" for each in range(5000)),
    "an object of Python": "a: !!python/object/apply:os.system [id]",
    "a name of Python": "a: !!python/name:os.system",
    "a directive": "%YAML 9.9\n%TAG ! tag:x,2000:\n---\na: !x 1",
}
MOST_TOLD: Final = 20_000
"""Characters of all faults: they go into one line of the log."""


@pytest.mark.parametrize("model", FILES)
@pytest.mark.parametrize("content", YAML.values(), ids=YAML)
def test_a_yaml_bomb_is_a_fault_that_costs_little(model: type[Settings], content: str) -> None:
    began_s = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(SettingsError) as refused:
            parse(Path("x.yaml"), content.encode(), model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - began_s < 30
    assert peak < 200 * 2**20
    assert len(str(refused.value)) < MOST_TOLD


# ------------------------------------------------------------ bodies


async def _length(request: Request) -> Reply:
    return Reply(200, str(len(request.body)).encode(), "text/plain")


READING: Final = Route("POST", "/batch", _length, max_body_bytes=400_000)


def _deflated(content: bytes) -> bytes:
    return zlib.compress(content, 9)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", _deflated)])
async def test_a_packed_bomb_is_refused_before_it_is_unpacked(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    bomb = pack(b"\0" * 2**27)
    assert len(bomb) < READING.max_body_bytes
    async with serving(READING) as running:
        wire = await running.connect()
        tracemalloc.start()
        try:
            wire.writer.write(request_bytes("POST", "/batch", bomb, f"Content-Encoding: {encoding}"))
            assert (await wire.response()).status == 415
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**24
        assert await running.is_alive()


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "x-unknown"])
async def test_a_packing_that_is_not_known_reaches_no_handler_unpacked(encoding: str) -> None:
    async with serving(READING) as running:
        wire = await running.connect()
        with suppress(ConnectionError):
            await wire.send(request_bytes("POST", "/batch", b"\x1f\x8b\0\0", f"Content-Encoding: {encoding}"))
        got = await wire.response()
        assert got.status in (400, 415)
        assert await running.is_alive()


@pytest.mark.parametrize(
    "headers",
    [
        [f"X-{each}: {'x' * 100}" for each in range(100_000)],
        [f"X-{each}: x" for each in range(1000)],
        ["X: " + "x" * 10_000_000],
        ["X" * 1_000_000 + ": x"],
        ["Cookie: " + "a=b; " * 200_000],
    ],
    ids=["very many", "many", "a long value", "a long name", "cookies"],
)
async def test_a_flood_of_headers_is_cut_off(headers: list[str]) -> None:
    async with serving() as running:
        wire = await running.connect()
        tracemalloc.start()
        try:
            with suppress(ConnectionError):
                await wire.send(request_bytes("GET", "/hello", b"", *headers))
            answer = await wire.rest() if len(headers) != 1000 else b"HTTP/1.1 400"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer == b"" or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        assert peak < 2**26
        assert await running.is_alive()


DEEP: Final = {
    "lists": b"[" * 300_000,
    "objects": b'{"a":' * 60_000,
    "closed lists": b"[" * 100_000 + b"]" * 100_000,
    "many duplicates": b"{" + b",".join([b'"a":1'] * 50_000) + b"}",
    "a number": b"9" * 300_000,
    "an exponent": b"1e" + b"9" * 300_000,
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_deep_json_costs_a_server_no_more_than_its_size(body: bytes) -> None:
    from tests.security.test_decoders import DECODERS, tried  # noqa: PLC0415 - the table takes a second to make

    for decoder in DECODERS:
        if decoder.name.startswith(("message ", "batch", "body of", "extender's", "problem", "error body")):
            tried(decoder, body)
