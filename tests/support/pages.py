"""An agent's page for commands that ask an agent: one answer for every request, served in a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AgentPage(ThreadingHTTPServer):
    """Answers every request alike. `tokens` are what it was shown, `paths` what was asked for."""

    daemon_threads = True

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = status, body
        self.tokens: list[str | None] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: AgentPage

    def do_GET(self) -> None:
        status, body = self.server.answer
        self.server.tokens.append(self.headers["Authorization"])
        self.server.paths.append(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def paged(status: int, body: bytes) -> Iterator[AgentPage]:
    """The page, for the length of a `with` block."""
    server = AgentPage(status, body)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
