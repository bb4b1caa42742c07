"""The informant over a real server: downscales, upscales, load and health."""

import pytest

from informant.guest.machine import GIB
from tests.unit.informant.guests import guest


async def test_a_downscale_that_fits_is_approved_and_taken_note_of() -> None:
    async with guest() as vm:
        await vm.in_use("a")
        status, result = await vm.call("PUT", "/downscale", b'{"cpu":"500m","memory":"2Gi"}')
        assert (status, result["Ok"]) == (200, True)
        assert vm.machine.sizes == [(500, 2 * GIB)]


async def test_a_downscale_that_does_not_fit_is_refused_with_200_and_changes_nothing() -> None:
    async with guest() as vm:
        await vm.in_use("a")
        status, result = await vm.call("PUT", "/downscale", b'{"cpu":"500m","memory":"1Gi"}')
        assert (status, result["Ok"]) == (200, False)
        assert "bytes are in use" in result["Status"]
        assert vm.machine.sizes == []


async def test_every_downscale_is_approved_where_that_is_wished() -> None:
    async with guest(approves_all=True) as vm:
        await vm.in_use("a")
        assert (await vm.call("PUT", "/downscale", b'{"cpu":"1","memory":"1Mi"}'))[1]["Ok"] is True
        assert vm.machine.sizes == [(1000, 2**20)]


async def test_an_upscale_is_taken_note_of() -> None:
    async with guest() as vm:
        await vm.in_use("a")
        assert await vm.call("PUT", "/upscale", b'{"cpu":"4","memory":"8Gi"}') == (200, {})
        assert vm.machine.sizes == [(4000, 8 * GIB)]


NO_AMOUNTS = [
    b"",
    b"{}",
    b"null",
    b'{"cpu":null,"memory":"1Gi"}',
    b'{"cpu":"1","memory":null}',
    b'{"cpu":"many","memory":"1Gi"}',
    b'{"cpu":"-1","memory":"8Gi"}',
    b'{"cpu":"1","memory":"-8Gi"}',
]


@pytest.mark.parametrize("path", ["/downscale", "/upscale"])
@pytest.mark.parametrize("body", NO_AMOUNTS)
async def test_amounts_that_are_none_are_400_and_change_nothing(path: str, body: bytes) -> None:
    async with guest(approves_all=True) as vm:
        await vm.in_use("a")
        assert (await vm.call("PUT", path, body))[0] == 400
        assert vm.machine.sizes == []


@pytest.mark.parametrize("path", ["/downscale", "/upscale"])
async def test_no_size_is_agreed_on_with_whom_we_do_not_know(path: str) -> None:
    """An agent that outlived an earlier life of ours, or has left, learns so by 404 and registers (again)."""
    body = b'{"cpu":"1","memory":"8Gi"}'
    async with guest(approves_all=True) as vm:
        for known in (b"", body):
            assert await vm.call("PUT", path, known) == (404, "no agent is registered: register first\n")
        unchecked = await vm.agent("a", broken={"/id"})
        assert (await vm.register(unchecked))[0] == 400
        assert (await vm.call("PUT", path, body))[0] == 404
        assert vm.machine.sizes == []
        agent = await vm.in_use("b")
        assert (await vm.call("PUT", path, body))[0] == 200
        await vm.call("DELETE", "/unregister", agent.desc())
        assert (await vm.call("PUT", path, body))[0] == 404
        assert vm.machine.sizes == [(1000, 8 * GIB)]


async def test_load_and_health_are_served() -> None:
    async with guest() as vm:
        status, page = await vm.call("GET", "/metrics")
        assert status == 200
        assert "node_load1 0.50\n" in page
        assert "host_load1 0.50\n" in page
        assert await vm.call("GET", "/healthz") == (200, "ok\n")


async def test_the_published_methods_are_the_only_ones() -> None:
    async with guest() as vm:
        for method, path in (("GET", "/register"), ("POST", "/unregister"), ("POST", "/downscale")):
            assert (await vm.call(method, path))[0] == 405
