"""Answers in the place of a pool plugin's service: from elsewhere, and on the way. Growth is refused, and nobody else is asked."""

from pathlib import Path

import pytest

from hosting.server import Reply, Request, Route, Server
from hosting.tls import TlsFiles
from scheduler.pools.core.errors import PluginErrorKind, kind_from_app_error
from scheduler.pools.shipped.http_admission import HttpAdmission, checked_args
from tests.unit.hosting.raw_peers import recorded, serving
from tests.unit.hosting.test_tls import Authority, loaded
from tests.unit.scheduler_pools.test_http_admission import handle, update


async def test_an_answer_from_elsewhere() -> None:
    """The service sends the question on: it is not followed, so that its bearer token and the decision stay with the service."""
    asked: list[Request] = []

    async def admit(request: Request) -> Reply:
        asked.append(request)
        return Reply(204)

    async with serving(Route("POST", "/admit", admit)) as other:

        async def send_on(_: Request) -> Reply:
            return Reply(307, headers={"Location": other.url("/admit")})

        async with serving(Route("POST", "/admit", send_on)) as service:
            plugin = HttpAdmission(checked_args({"url": service.url("/admit")}), recorded()[0])
            await plugin.start(handle(recorded()[0]))
            try:
                answer = await update(plugin)
            finally:
                await plugin.stop()
    assert answer.error is not None
    assert kind_from_app_error(answer.error) is PluginErrorKind.INTERNAL
    assert asked == []


async def test_an_answer_with_a_foreign_certificate(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "foreign", "foreign")

    async def admit(_: Request) -> Reply:
        return Reply(204)

    server = Server(recorded()[0], (Route("POST", "/admit", admit),))
    files = foreign.issue(tmp_path / "server")
    port = await server.start("127.0.0.1", 0, loaded(TlsFiles(files.certificate, files.key)).server())
    args = {"url": f"https://127.0.0.1:{port}/admit", "caFile": str(ours.ca)}
    plugin = HttpAdmission(checked_args(args), recorded()[0])
    await plugin.start(handle(recorded()[0]))
    try:
        answer = await update(plugin)
    finally:
        await plugin.stop()
        await server.close()
    assert answer.error is not None


@pytest.mark.parametrize("url", ["http://quota.example/admit", "http://10.0.0.7:8099/admit"])
def test_a_service_on_another_machine_is_not_asked_in_the_clear_unawares(url: str) -> None:
    with pytest.raises(ValueError, match="must be https:// on another machine"):
        checked_args({"url": url})
    assert checked_args({"url": url, "plainHttp": True}).plain_http
    assert checked_args({"url": "http://127.0.0.1:8099/admit"}).url
