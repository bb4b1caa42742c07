"""A server that decides nothing: it grants every request, so that the load generator limits the rate.

`python -m benchmarks.load.trivial --port N`; the benchmarks start it with `--trivial`.
"""

import argparse
import asyncio
import contextlib
import re
import uuid
from typing import cast

import uvloop

_NUMBER = re.compile(rb'"sequenceNumber":(\d+)')
_WANTED = re.compile(rb'"raw":\{"resources":(\{[^}]*\})')
_INSTANCE = str(uuid.uuid4()).encode()
_BODY = (
    b'{"permit":{"vCPUs":2,"mem":2},"resourceUnit":{"vCPUs":1,"mem":1},"sequenceNumber":%b,'
    b'"schedulerInstance":"%b","schedulerEpoch":0,"raw":{"permit":%b,"computeUnit":{"cpu":"1","memory":"1Gi"}},'
    b'"reasons":[]}'
)
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


def _answer(request: bytes) -> bytes:
    if not request.startswith(b"POST "):
        return b'{"faults":[]}'
    pairs = zip(_NUMBER.findall(request), _WANTED.findall(request), strict=True)
    bodies = [_BODY % (number, _INSTANCE, wanted) for number, wanted in pairs]
    if request.startswith(b"POST /batch"):
        return b"[%b]" % b",".join(b'{"status":200,"body":%b}' % body for body in bodies)
    return bodies[0]


class _Serve(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._buffer.find(b"Content-Length: ", 0, end)
        size = int(self._buffer[at + 16 : end]) if at >= 0 else 0  # the generator writes it last
        if len(self._buffer) < end + 4 + size:
            return
        body = _answer(self._buffer)
        self._buffer = b""
        self._transport.write(_REPLY % (len(body), body))


async def _main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main(parser.parse_args().port))
