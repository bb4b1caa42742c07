"""An extender of kube-scheduler that decides nothing: every node will do, and none is better than another.

`python -m benchmarks.load.idle_extender --port N [--kubeconfig FILE]`. With a kubeconfig it answers bind as well: it makes the
binding at the API server, and does nothing besides.
"""

import argparse
import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from labs.clusters.scheduling import PREFIX

LARGEST_BODY_BYTES: Final = 2**26


class FilterRequest(msgspec.Struct):
    """The fields of a request to filter that are used."""

    NodeNames: list[str]


class BindRequest(msgspec.Struct):
    """The fields of a request to bind that are used."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def _filter(request: web.Request) -> web.Response:
    asked = msgspec.json.decode(await request.read(), type=FilterRequest)
    return _json({"NodeNames": asked.NodeNames})


async def _prioritize(request: web.Request) -> web.Response:
    asked = msgspec.json.decode(await request.read(), type=FilterRequest)
    return _json([{"Host": name, "Score": 0} for name in asked.NodeNames])


class Binder:
    """Makes bindings at the API server of a kubeconfig of `labs.clusters.control_plane`."""

    def __init__(self, kubeconfig: Path) -> None:
        config: dict[str, Any] = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = config["users"][0]["user"]["token"]

    async def session(self, _: web.Application) -> AsyncIterator[None]:
        """Keep connections for as long as the server lives."""
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0)
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as self._session:
            yield

    async def bind(self, request: web.Request) -> web.Response:
        """Answer with what the API server has against it."""
        asked = msgspec.json.decode(await request.read(), type=BindRequest)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": asked.PodName, "uid": asked.PodUID},
            "target": {"kind": "Node", "name": asked.Node},
        }
        path = f"/api/v1/namespaces/{asked.PodNamespace}/pods/{asked.PodName}/binding"
        async with self._session.post(self._server + path, json=binding) as answer:
            text = await answer.text()
            return _json({"Error": "" if answer.status == 201 else text})


async def _main(port: int, kubeconfig: Path | None) -> None:
    app = web.Application(client_max_size=LARGEST_BODY_BYTES)
    app.router.add_post(f"{PREFIX}/filter", _filter)
    app.router.add_post(f"{PREFIX}/prioritize", _prioritize)
    if kubeconfig is not None:
        binder = Binder(kubeconfig)
        app.cleanup_ctx.append(binder.session)
        app.router.add_post(f"{PREFIX}/bind", binder.bind)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main(options.port, options.kubeconfig))
