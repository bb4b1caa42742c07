"""The command that makes the README's picture of the live page, over a real demo."""

import struct
from pathlib import Path
from typing import Final

import pytest

from tests.page import screenshot
from tests.support.watch_assets import WatchAssetsError, find_browser

PNG: Final = b"\x89PNG\r\n\x1a\n"


def test_the_picture_is_a_png_of_its_size(tmp_path: Path) -> None:
    try:
        find_browser()
    except WatchAssetsError as error:
        pytest.skip(str(error))
    path = tmp_path / "images" / "live-page.png"
    screenshot.take(path, decisions=5)  # a busy machine makes these within the patience of a test
    content = path.read_bytes()
    assert content.startswith(PNG)
    assert struct.unpack(">II", content[16:24]) == screenshot.SIZE
    assert len(content) < screenshot.MOST_BYTES
