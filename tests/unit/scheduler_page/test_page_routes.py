"""The routes of the live page answer its files, and its policy restricts the browser."""

import gzip
import importlib.resources
import re

import pytest
from click.testing import CliRunner

from hosting.server import Reply, Request, Route
from scheduler.page import routes
from scheduler.page.routes import PageUnavailableError, digest, inline, page_routes, policy
from scheduler.program import main


def _routes() -> dict[str, Route]:
    return {route.path: route for route in page_routes()}


async def _get(path: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await _routes()[path].answer(Request("GET", path, headers=named))
    assert isinstance(answer, Reply)
    return answer


def _policy(page: Reply) -> dict[str, str]:
    rules = page.headers["Content-Security-Policy"].split("; ")
    return {name: value for name, _, value in (rule.partition(" ") for rule in rules)}


def test_only_get_is_served() -> None:
    """`POST /` stays what agents ask for permits by."""
    assert [(route.method, route.path) for route in page_routes()] == [("GET", "/"), ("GET", "/page/d3.js")]


async def test_the_policy_lets_the_two_scripts_and_the_style_run_and_nothing_else() -> None:
    page, d3 = await _get("/"), await _get("/page/d3.js")
    rules = _policy(page)

    (script,), (style,) = inline(page.body, "script"), inline(page.body, "style")
    assert rules["script-src"] == f"'{digest(script)}' '{digest(d3.body)}'"
    assert rules["style-src"] == f"'{digest(style)}'"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in page.headers["Content-Security-Policy"]


async def test_the_chart_code_is_named_by_its_digest() -> None:
    """A browser runs an outer script by its digest only where the page names it."""
    page, d3 = await _get("/"), await _get("/page/d3.js")

    assert f'<script src="page/d3.js" integrity="{digest(d3.body)}">'.encode() in page.body
    assert b"{{" not in page.body


def test_a_changed_script_changes_the_policy() -> None:
    page = b"<style>a</style><script src=x></script><script>b</script>"

    assert policy(page, b"c") != policy(page.replace(b">b<", b">d<"), b"c")


async def test_the_page_names_no_other_server_and_no_inline_handler() -> None:
    """Attributes such as `style` and `onclick` would be blocked; an address with a scheme would be another server."""
    body = importlib.resources.files("scheduler.page").joinpath("page.html").read_text()
    addresses = re.findall(r"https?://[\w./]+", body)

    assert addresses == ["http://www.w3.org/2000/svg"], "the name of a format, and no address"
    assert re.findall(r"<[^>]*\s(?:style|on\w+)=", body.partition("<script")[0]) == []
    assert not re.search(r"innerHTML|insertAdjacentHTML|\.html\(|document\.write|eval\(", body)


@pytest.mark.parametrize("path", ["/", "/page/d3.js"])
async def test_browsers_keep_the_files_and_ask_whether_they_changed(path: str) -> None:
    first = await _get(path)
    again = await _get(path, if_none_match=f'"other", {first.headers["ETag"]}')
    changed = await _get(path, if_none_match='"other"')

    assert first.headers["Cache-Control"] == "no-cache"
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert (changed.status, changed.body) == (200, first.body)


@pytest.mark.parametrize("path", ["/", "/page/d3.js"])
async def test_browsers_neither_guess_types_nor_frame_the_files(path: str) -> None:
    headers = (await _get(path)).headers

    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("", False),
        ("br", False),
    ],
)
async def test_the_files_are_compressed_for_readers_that_take_it(accepted: str, is_packed: bool) -> None:
    plain = await _get("/page/d3.js")
    found = await _get("/page/d3.js", accept_encoding=accepted)

    assert found.headers.get("Content-Encoding") == ("gzip" if is_packed else None)
    assert (gzip.decompress(found.body) if is_packed else found.body) == plain.body


def test_without_the_chart_code_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "D3_PACKAGE", "no.such.package")

    with pytest.raises(PageUnavailableError, match=r"pip install '\.\[page\]'"):
        page_routes()
    done = CliRunner().invoke(main, ("--cluster", "c.yaml", "--page"))
    assert done.exit_code == 2
    assert "pip install '.[page]'" in done.output
