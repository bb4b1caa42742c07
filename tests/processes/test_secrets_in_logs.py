"""No secret is in what the programs write in a whole run: logs at level debug, pages, metrics, and what is said at an end without success."""

import base64
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.support.processes import agent_file, cluster_file, fetch, free_port, post, running, write_json
from tests.support.waiting import shown_blocking

SECRETS: Final = {
    "the viewers' token": "viewer-7d1f0a55c2e94b0f",
    "a token that is shown and wrong": "wrong-93b2c1d4e5f60718",
    "a token in a path": "inpath-55aa66bb77cc88dd",
    "a token in a query": "inquery-0f1e2d3c4b5a6978",
    "a token in a request that is none": "garbled-13579bdf02468ace",
    "the admission service's token": "admission-a1b2c3d4e5f6",
    "the cluster's token": "cluster-0123456789abcdef",
    "a token that is too short": "tiny-pass",
    "the password of a URL": "urlpass-fedcba9876543210",
}


def forms(secret: str) -> Iterator[str]:
    """The secret as it is, in hexadecimal, in a URL, and in Base64 wherever it begins."""
    raw = secret.encode()
    yield from (secret, raw.hex(), raw.hex().upper(), quote(secret, safe=""), secret[::-1])
    for ahead in range(3):
        whole = base64.b64encode(b"\0" * ahead + raw).decode()
        yield whole[(ahead * 8 + 5) // 6 : len(whole) - 4]


class _Peer(BaseHTTPRequestHandler):
    """An informant, and an admission service that has failed: it quotes the token that it was shown."""

    seen: list[tuple[str, dict[str, Any], str]]

    @property
    def port(self) -> int:
        port: int = self.request.getsockname()[1]
        return port

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        shown = self.headers.get("Authorization") or ""
        with suppress(ValueError):
            self.seen.append((self.path, json.loads(body or b"{}"), shown))
        if self.path == "/register":
            answer, status = (
                {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": self.port}}},
                200,
            )
        else:
            answer, status = {"message": f"refused: {shown}", "detail": shown}, 500
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Nothing: it is no program of ours."""


@contextmanager
def peer() -> Iterator[tuple[int, list[tuple[str, dict[str, Any], str]]]]:
    seen: list[tuple[str, dict[str, Any], str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Peer", (_Peer,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> bytes:
    """The answer, with any status."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            found: bytes = response.read()
    except urllib.error.HTTPError as error:
        with error:
            found = error.read()
    return found


def kubeconfig(path: Path, port: int) -> Path:
    """A cluster that nobody serves."""
    return write_json(
        path,
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"token": SECRETS["the cluster's token"]}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        },
    )


def secret_file(path: Path, name: str) -> Path:
    path.write_text(SECRETS[name] + "\n")
    return path


def test_no_secret_is_in_any_log_or_page_of_a_whole_run(tmp_path: Path) -> None:
    scheduler, informant, agent, nobody = (free_port() for _ in range(4))
    said: dict[str, str] = {}
    with ExitStack() as stack:
        other, seen = stack.enter_context(peer())
        cluster = cluster_file(tmp_path / "cluster.yaml", ["a", "b"])
        described = json.loads(cluster.read_text())
        described["pools"] = [{"name": "p", "computeUnit": {"cpu": 1, "memory": "1Gi"}}]
        for each in described["vms"]:
            each["labels"] = {"parley.dev/pool": "p"}
        write_json(cluster, described)
        settings = agent_file(tmp_path / "agent.yaml", scheduler, {"a": informant, "b": other})
        admission = {
            "name": "http-admission",
            "args": {
                "url": f"http://127.0.0.1:{other}/admit",
                "tokenFile": str(secret_file(tmp_path / "admission", "the admission service's token")),
            },
        }
        config = write_json(tmp_path / "config.yaml", {"pools": {"plugins": [admission]}})
        viewers = secret_file(tmp_path / "viewers", "the viewers' token")
        debug = ("--log-level", "debug")
        busy = ("--workload", "step", "--low", "3.5", "--high", "3.5")
        programs = {
            "scheduler": (
                "scheduler",
                "--cluster",
                str(cluster),
                "--config",
                str(config),
                "--port",
                str(scheduler),
                *debug,
            ),
            "informant": ("informant", "--port", str(informant), *busy, *debug),
            "agent": (
                "agent",
                "--config",
                str(settings),
                "--port",
                str(agent),
                "--token-file",
                str(viewers),
                *debug,
            ),
            "scheduler without its cluster": (
                "scheduler",
                "--kubeconfig",
                str(kubeconfig(tmp_path / "kubeconfig", nobody)),
                "--port",
                "0",
                *debug,
            ),
        }
        started = {
            name: stack.enter_context(running(*arguments, output=tmp_path / f"{name}.log"))
            for name, arguments in programs.items()
        }
        right = SECRETS["the viewers' token"]

        def page(path: str) -> bytes:
            return asked(agent, path, Authorization=f"Bearer {right}")

        shown_blocking(
            "a permit",
            lambda: next(
                each["permit"] for each in json.loads(page("/v1/vms"))["vms"] if each["vm"] == "d/a"
            ),
        )
        shown_blocking("a registration", lambda: [each for each in seen if each[0] == "/register"])
        shown_blocking("a call to the service", lambda: [each for each in seen if each[0] == "/admit"])
        registration = next(found["agentID"] for path, found, _ in seen if path == "/register")
        for port in (scheduler, informant, agent):
            wrong = SECRETS["a token that is shown and wrong"]
            for path in ("/", "/metrics", "/v1/vms", "/healthz", "/v1/plugins", "/v1/state", "/v1/pools"):
                said[f"{port}{path}"] = asked(
                    port, path, Authorization=f"Bearer {wrong}", Parley_Token=wrong
                ).decode(errors="replace")
            asked(port, f"/v1/{SECRETS['a token in a path']}")
            asked(port, f"/metrics?token={SECRETS['a token in a query']}")
            asked(port, "/", "POST", b'{"x": "' + SECRETS["a token in a request that is none"].encode())
            garbled(port, SECRETS["a token in a request that is none"])
        said["vms"] = page("/v1/vms").decode()
        for vm in ("a", "b"):
            said[f"vm {vm}"] = page(f"/v1/vms/d/{vm}").decode()
        for order in ("resume", "suspend", "try-upscale"):
            post(agent, json.dumps({"expectedID": registration}).encode(), f"/agents/{registration}/{order}")
            post(agent, b'{"expectedID": 4', f"/agents/{registration}/{order}")
        said["metrics at the end"] = fetch(agent, "/metrics").decode() + fetch(scheduler, "/metrics").decode()
        identities = {each for program in started.values() for each in UUID.findall(program.text())}
        opening = {
            each
            for each in identities
            if b"sequenceNumber" in asked(agent, f"/agents/{each}/id", "GET", b"{}")
        }
        assert opening == set(), "an ID in a log opens callbacks"
        for name in ("agent", "scheduler", "informant"):
            started[name].end()
    said |= {name: program.text() for name, program in started.items()}
    said |= refused_at_the_start(tmp_path)
    assert len(said["agent"]) > 1000
    found = [
        (name, place)
        for name, secret in {**SECRETS, "a registration": registration}.items()
        for place, text in said.items()
        if any(form in text for form in forms(secret))
    ]
    assert found == []


UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def garbled(port: int, secret: str) -> None:
    """Requests that no parser takes."""
    for content in (
        f"GET {secret}\r\n\r\n",
        f"GET / HTTP/1.1\r\nAuthorization Bearer {secret}\r\n\r\n",
        f"{secret}\0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(content.encode())
            with suppress(OSError):
                connection.recv(4096)


def refused_at_the_start(directory: Path) -> dict[str, str]:
    """The words of programs that do not start, because of what holds a secret."""
    short = secret_file(directory / "short", "a token that is too short")
    blanks = directory / "blanks"
    blanks.write_text(" ".join((SECRETS["a token that is too short"], SECRETS["the viewers' token"])))
    url = f"http://user:{SECRETS['the password of a URL']}@127.0.0.1:1/admit"
    wrong = write_json(
        directory / "wrong.yaml",
        {"pools": {"plugins": [{"name": "http-admission", "args": {"url": url, "tokenFile": str(blanks)}}]}},
    )
    settings = agent_file(directory / "other.yaml", 1, {"a": 1})
    with_password = json.loads(settings.read_text()) | {"scheduler": url}
    commands = {
        "short token": ("agent", "--config", str(settings), "--port", "0", "--token-file", str(short)),
        "token with a blank": (
            "agent",
            "--config",
            str(settings),
            "--port",
            "0",
            "--token-file",
            str(blanks),
        ),
        "URL with a password": (
            "scheduler",
            "--cluster",
            str(directory / "cluster.yaml"),
            "--config",
            str(wrong),
            "--port",
            "0",
        ),
        "scheduler with a password": (
            "agent",
            "--config",
            str(write_json(directory / "p.yaml", with_password)),
            "--port",
            "0",
        ),
    }
    said = {}
    for name, (module, *arguments) in commands.items():
        with running(module, *arguments, output=directory / f"{name}.log") as program:
            assert program.process.wait(60) != 0, name
            said[name] = program.text()
    return said


def test_the_search_finds_a_secret_in_each_of_its_forms() -> None:
    secret = SECRETS["the viewers' token"]
    for ahead in ("", "a", "ab", "user:", "Bearer "):
        packed = base64.b64encode(f"{ahead}{secret} and more".encode()).decode()
        assert any(form in packed for form in forms(secret)), ahead
    assert any(form in f"token={secret}" for form in forms(secret))
