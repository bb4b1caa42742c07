"""The routes of the live page: `GET /` and the chart code that it loads.

The page is one file of ours, whose style is put into it, and D3, which a package brings. They are read once, at the start; the page
reads its data from the scheduler's own API, like any other reader. The Content-Security-Policy lets a browser run these two files and
reach nothing but this server, so that names and messages of peers stay text even if the page has a fault.
"""

import base64
import gzip
import hashlib
import importlib.resources
import re
from dataclasses import dataclass
from typing import Final

from hosting import server
from hosting.problems import DocumentedAnswer, Operation

D3_PACKAGE: Final = "xstatic.pkg.d3"
D3_PLACE: Final = b"{{D3_INTEGRITY}}"
"""The placeholder in the page for the digest of the chart code."""
PARTS: Final = ("page.html", "page.css")
STYLE_PLACE: Final = b"{{STYLE}}"
"""The placeholder in the page for its style."""
INSTALL: Final = "--page needs the chart code of the page, the extra `page`: .venv/bin/pip install '.[page]'"
HARDENING: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers by which browsers restrict the page's files."""
ASK_AGAIN: Final = "no-cache"
"""A browser keeps the file, and asks whether it is still the same."""


class PageUnavailableError(Exception):
    """The page cannot be served here. The text is for a person, and says what to install."""


@dataclass(frozen=True, slots=True)
class _PageFile:
    """A file as it is sent: whole, or compressed for readers that take gzip."""

    content: bytes
    packed: bytes
    content_type: str
    headers: dict[str, str]

    async def serve(self, request: server.Request) -> server.Reply:
        """The file, or 304 if the reader has it already."""
        if self.headers["ETag"] in re.split(r"\s*,\s*", request.headers.get("if-none-match", "")):
            return server.Reply(304, b"", self.content_type, self.headers)
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            packed = {**self.headers, "Content-Encoding": "gzip"}
            return server.Reply(200, self.packed, self.content_type, packed)
        return server.Reply(200, self.content, self.content_type, self.headers)


def page_routes() -> tuple[server.Route, ...]:
    """The routes of the page. Reads its files. Raises `PageUnavailableError` if the chart code is not installed."""
    chart_code = _chart_code()
    page, style = (importlib.resources.files(__package__).joinpath(name).read_bytes() for name in PARTS)
    page = page.replace(STYLE_PLACE, style).replace(D3_PLACE, digest(chart_code).encode())
    html = _file(page, "text/html; charset=utf-8", {"Content-Security-Policy": policy(page, chart_code)})
    script = _file(chart_code, "text/javascript; charset=utf-8", {})
    return (
        server.Route(
            "GET", "/", html.serve, about=_about("The live page, for people", "The page", "text/html")
        ),
        server.Route(
            "GET",
            "/page/d3.js",
            script.serve,
            about=_about("The chart code of the live page", "D3", "text/javascript"),
        ),
    )


def policy(page: bytes, chart_code: bytes) -> str:
    """The Content-Security-Policy of the page: it runs the script and the style that are in it and the chart code, each by its digest,
    reads from its own server, and does nothing else. Text can never become markup (Trusted Types)."""
    scripts = [digest(each) for each in (*inline(page, "script"), chart_code)]
    styles = [digest(each) for each in inline(page, "style")]
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(f"'{each}'" for each in scripts),
        "style-src": " ".join(f"'{each}'" for each in styles),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def inline(page: bytes, element: str) -> list[bytes]:
    """The texts between the tags of such elements of the page; empty ones are left out."""
    name = element.encode()
    return [each for each in re.findall(rb"<%s[^>]*>(.*?)</%s>" % (name, name), page, re.DOTALL) if each]


def digest(content: bytes) -> str:
    """The digest of a file as policies and `integrity` name it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"


def _chart_code() -> bytes:
    try:
        return importlib.resources.files(D3_PACKAGE).joinpath("data", "d3.js").read_bytes()
    except (ImportError, OSError):
        raise PageUnavailableError(INSTALL) from None


def _file(content: bytes, content_type: str, headers: dict[str, str]) -> _PageFile:
    tag = hashlib.sha256(content).hexdigest()[:32]
    packed = gzip.compress(content, mtime=0)
    own = {
        "ETag": f'W/"{tag}"',
        "Cache-Control": ASK_AGAIN,
        "Vary": "Accept-Encoding",
        **HARDENING,
        **headers,
    }
    return _PageFile(content, packed, content_type, own)


def _takes_gzip(accepted: str) -> bool:
    """Whether a reader's `Accept-Encoding` names gzip, and not with the weight 0."""
    for each in accepted.split(","):
        name, _, weight = each.partition(";")
        if name.strip().lower() == "gzip":
            return re.fullmatch(r"\s*q=0(\.0*)?\s*", weight) is None
    return False


def _about(summary: str, what: str, content_type: str) -> Operation:
    answers = {
        200: DocumentedAnswer(what, content_type=content_type),
        304: DocumentedAnswer("The reader has it already"),
    }
    return Operation(summary, answers, tag="page")
