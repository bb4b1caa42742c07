"""The server of a plugin's registration, whenever the plugin is told to end."""

import asyncio
from pathlib import Path

import pytest

from hosting import logs
from parley.node_plugins import RegistrationOffer, RegistrationServer


@pytest.mark.parametrize("turns", range(6))
async def test_a_plugin_that_is_told_to_end_while_it_starts_ends(turns: int, tmp_path: Path) -> None:
    offer = RegistrationOffer(plugin_type="Policy", name="p", versions=("v1",))
    running = asyncio.ensure_future(
        RegistrationServer(offer, tmp_path / "p.sock", log=logs.logger("test")).run()
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _left(tmp_path) == []


def _left(folder: Path) -> list[Path]:
    return list(folder.iterdir())
