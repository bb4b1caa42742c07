"""Whether the demo's scheduler serves the live page."""

import pytest

from parley import scene


def test_the_page_is_served_where_its_chart_code_is_installed() -> None:
    assert scene.live_page_arguments() == ("--page",)
    assert scene.live_page_address(1234) == "http://127.0.0.1:1234/"


@pytest.mark.parametrize("package", ["no.such.package", "json.no_such_module"])
def test_without_its_chart_code_the_scheduler_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(scene, "CHART_CODE", package)
    assert scene.live_page_arguments() == ()
    assert scene.live_page_address(1234) is None


def test_who_has_no_chart_code_is_told_the_command_that_gets_it() -> None:
    assert ".venv/bin/pip install '.[page]'" in scene.NO_LIVE_PAGE
