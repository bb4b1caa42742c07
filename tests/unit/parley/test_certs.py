"""`parley certs`: what it makes is good for a handshake as strict as OpenSSL's, and what it is told and reads is checked."""

import builtins
import json
import os
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from hosting.tls import Tls, TlsFiles
from parley.certs import issuing
from parley.certs.names import AltName, CertificateSpec
from parley.program import main

EVERYBODY = (
    "--scheduler",
    "127.0.0.1",
    "--scheduler",
    "scheduler.example",
    "--agent",
    "n1",
    "--viewer",
    "--kube-scheduler",
)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["certs", *map(str, arguments)])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory with a certificate of each kind."""
    directory = tmp_path / "certs"
    done = call("create", directory, *EVERYBODY)
    assert done.exit_code == 0, done.output
    return directory


def shown(*files: Path) -> list[dict[str, Any]]:
    done = call("show", "--output", "json", *files)
    found: list[dict[str, Any]] = json.loads(done.stdout)["certificates"]
    return found


def handshake(server: Path, client: Path, host: str) -> dict[str, Any]:
    """The client's certificate as the server of a handshake sees it, both sides as strict as Python's ssl can be."""
    contexts = []
    for protocol, folder in ((ssl.PROTOCOL_TLS_SERVER, server), (ssl.PROTOCOL_TLS_CLIENT, client)):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(folder / "ca.crt")
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        contexts[0].wrap_bio(to_server, to_client, server_side=True),
        contexts[1].wrap_bio(to_client, to_server, server_hostname=host),
    ]
    left = [*sides]
    for _ in range(10):
        for side in reversed(sides):
            if side in left:
                try:
                    side.do_handshake()
                    left.remove(side)
                except ssl.SSLWantReadError:
                    pass
    assert not left
    assert sides[0].version() == "TLSv1.3"
    return dict(sides[0].getpeercert() or {})


@pytest.mark.parametrize("host", ["127.0.0.1", "scheduler.example"])
@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("agent-n1", ("URI", "spiffe://parley/agent/n1")),
        ("viewer", ("DNS", "viewer.parley")),
        ("kube-scheduler", ("DNS", "kube-scheduler.parley")),
    ],
)
def test_a_strict_server_and_client_take_each_other(
    made: Path, client: str, name: tuple[str, str], host: str
) -> None:
    seen = handshake(made / "scheduler", made / client, host)
    assert seen["subjectAltName"] == (name,)


def test_a_client_is_no_server_and_a_server_no_client(made: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made / "agent-n1", made / "viewer", "n1")
    with pytest.raises(ssl.SSLError):
        handshake(made / "scheduler", made / "scheduler", "127.0.0.1")


def test_a_foreign_authority_is_not_believed(made: Path, tmp_path: Path) -> None:
    assert call("create", tmp_path / "others", *EVERYBODY).exit_code == 0
    with pytest.raises(ssl.SSLError):
        handshake(made / "scheduler", tmp_path / "others/agent-n1", "127.0.0.1")


def test_keys_are_the_users_alone(made: Path) -> None:
    for file in (made, *made.rglob("*")):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file


def test_an_agent_with_hosts_serves_its_own_port(made: Path) -> None:
    assert call("create", made, "--agent", "n2=10.0.0.7,N2.Example").exit_code == 0
    (found,) = shown(made / "agent-n2/tls.crt")
    assert found["names"] == ["URI:spiffe://parley/agent/n2", "DNS:n2.example", "IP:10.0.0.7"]
    assert found["usages"] == ["clientAuth", "serverAuth"]
    assert found["parley"] == ["the agent of node n2", "a server at n2.example, 10.0.0.7"]
    handshake(made / "agent-n2", made / "viewer", "10.0.0.7")


def test_what_is_there_stays(made: Path) -> None:
    before = {file: file.read_bytes() for file in made.rglob("*.*")}
    done = call("create", made, "--agent", "n1", "--viewer", "--agent", "n3", "--days", "400")
    assert done.exit_code == 1
    told = done.stderr.splitlines()
    assert [line.split(" ")[0] for line in told[1:]] == [str(made / "agent-n1"), str(made / "viewer")]
    assert told[0].startswith("the authority ends at ")
    assert {file: file.read_bytes() for file in made.rglob("*.*")} == before
    assert not (made / "agent-n3").exists()


def test_force_replaces_certificates_and_never_the_authority(made: Path) -> None:
    authority, agent = (made / "ca.crt").read_bytes(), (made / "agent-n1/tls.key").read_bytes()
    assert call("create", made, "--agent", "n1", "--force").exit_code == 0
    assert (made / "ca.crt").read_bytes() == authority
    assert (made / "agent-n1/tls.key").read_bytes() != agent


def test_all_faults_of_a_command_line_are_told_at_once(tmp_path: Path) -> None:
    given = (
        "--scheduler",
        "x..y",
        "--scheduler",
        "300.1.1.1",
        "--agent",
        "a/b",
        "--agent",
        "..",
        "--agent",
        "n=viewer.parley",
    )
    done = call("create", tmp_path / "never", *given, "--agent", "\u00fc", "--agent", "x", "--agent", "x")
    assert done.exit_code == 2
    for fault in (
        "'x..y'",
        "'300.1.1.1'",
        "'a/b'",
        "'..'",
        "'viewer.parley'",
        "'\u00fc'",
        "'x' is given twice",
    ):
        assert fault in done.stderr
    assert not (tmp_path / "never").exists()
    assert "nothing is asked for" in call("create", tmp_path / "never").stderr
    for days in ("0", "-1", "nan", "4000"):
        assert call("create", tmp_path / "never", "--viewer", "--days", days).exit_code == 2
    assert (
        "is more than --authority-days"
        in call("create", tmp_path / "never", "--viewer", "--days", "9", "--authority-days", "8").stderr
    )
    assert not (tmp_path / "never").exists()


def test_a_directory_that_others_may_read_gets_no_keys(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = call("create", tmp_path, "--viewer")
    assert (done.exit_code, done.stderr) == (
        1,
        f"{tmp_path} is open to other users (0755), and keys are to lie there: chmod 700 {tmp_path}\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_folder_is_not_followed(made: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (made / "agent-n9").symlink_to(elsewhere)
    done = call("create", made, "--agent", "n9", "--force")
    assert (done.exit_code, done.stderr) == (1, f"{made / 'agent-n9'} is a link, which is not followed\n")
    assert call("renew", made, "agent-n9").exit_code == 1
    assert call("renew", made).exit_code == 0
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(made: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (made / "viewer/tls.crt").unlink()
    (made / "viewer/tls.crt").symlink_to(victim)
    assert call("create", made, "--viewer", "--force").exit_code == 0
    assert victim.read_text() == "precious"
    assert not (made / "viewer/tls.crt").is_symlink()


def test_the_authority_must_be_whole(made: Path) -> None:
    key = (made / "ca.key").read_bytes()
    (made / "ca.key").unlink()
    assert "ca.key cannot be read" in call("create", made, "--agent", "n2").stderr
    (made / "ca.key").write_bytes(issuing.key_pem(issuing.new_key()))
    assert "belongs to another key" in call("create", made, "--agent", "n2").stderr
    (made / "ca.key").write_bytes(key)
    (made / "ca.crt").write_bytes((made / "viewer/tls.crt").read_bytes())
    assert "may sign no others" in call("renew", made).stderr


@pytest.mark.parametrize("new_keys", [False, True])
def test_renewed_certificates_are_taken_up_and_keep_their_names(made: Path, *, new_keys: bool) -> None:
    folder = made / "agent-n1"
    tls = Tls(TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt"))
    tls.load()
    key, (before,) = (folder / "tls.key").read_bytes(), shown(folder / "tls.crt")
    done = call("renew", made, "agent-n1", "--days", "3", *(["--new-keys"] if new_keys else []))
    assert done.exit_code == 0, done.output
    (after,) = shown(folder / "tls.crt")
    same = ("subject", "issuer", "names", "usages", "key")
    assert [after[each] for each in same] == [before[each] for each in same]
    assert (after["serial"] != before["serial"], after["notAfter"] < before["notAfter"]) == (True, True)
    assert ((folder / "tls.key").read_bytes() != key) is new_keys
    handshake(made / "scheduler", folder, "127.0.0.1")


async def test_a_running_program_takes_renewed_files_up(made: Path) -> None:
    folder = made / "scheduler"
    tls = Tls(TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt"))
    tls.load()
    assert not await tls.refresh()
    assert call("renew", made).exit_code == 0
    assert await tls.refresh()


def test_only_those_that_end_soon_are_renewed_if_that_is_wanted(made: Path) -> None:
    assert call("create", made, "--agent", "late", "--days", "1").exit_code == 0
    done = call("renew", made, "--within", "2")
    lines = done.stdout.splitlines()
    assert [line.split(" ")[0] for line in lines if "agent-late" not in line] == ["left"] * 4
    assert [line.split(" ")[0] for line in lines if "agent-late" in line] == ["renewed"]


def test_what_cannot_be_renewed_is_said_and_nothing_is(made: Path) -> None:
    (made / "viewer/tls.crt").write_text("no certificate")
    before = (made / "agent-n1/tls.crt").read_bytes()
    done = call("renew", made)
    assert (done.exit_code, done.stderr) == (1, f"{made / 'viewer/tls.crt'} holds no certificate in PEM\n")
    assert (made / "agent-n1/tls.crt").read_bytes() == before
    assert call("renew", made, "../elsewhere").exit_code == 2
    assert "cannot be read" in call("renew", made, "nobody").stderr


def test_a_lost_key_is_made_anew(made: Path) -> None:
    (made / "viewer/tls.key").unlink()
    assert call("renew", made, "viewer").exit_code == 0
    handshake(made / "scheduler", made / "viewer", "127.0.0.1")


def test_show_tells_what_is_wrong(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = issuing.Authority.new(now - timedelta(days=30), 60)
    key = issuing.new_key()
    two = (AltName("URI", "spiffe://parley/agent/a"), AltName("URI", "spiffe://parley/agent/b"))
    cases = {
        "expired": (CertificateSpec("", "x", two[:1], is_client=True), now - timedelta(days=9), "it has expired"),
        "early": (CertificateSpec("", "x", two[:1], is_client=True), now + timedelta(days=9), "it is not valid yet"),
        "two": (CertificateSpec("", "x", two, is_client=True), now, "it names several nodes: an agent has one"),
        "server": (CertificateSpec("", "x", two[:1], is_server=True), now, "it names an agent, and is not for clients (extended key usage)"),
    }  # fmt: skip
    for name, (asked, when, fault) in cases.items():
        file = tmp_path / name
        file.write_bytes(authority.issue(asked, key, when, 7))
        assert [each["faults"] for each in shown(file)] == [[fault]]
        assert call("show", file).exit_code == 1
        assert fault in call("show", file).stdout
    (tmp_path / "other").write_bytes(trustme.CA().issue_cert("a.example").cert_chain_pems[0].bytes())
    (found,) = shown(tmp_path / "other")
    assert found["faults"] == []
    assert found["parley"] == ["a server at a.example"]


def test_show_reads_all_files_and_tells_of_those_that_hold_none(made: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (2**20 + 1))
    (tmp_path / "garbage").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (tmp_path / "both").write_bytes((made / "ca.crt").read_bytes() + (made / "viewer/tls.crt").read_bytes())
    done = call(
        "show",
        made / "ca.key",
        tmp_path / "big",
        tmp_path / "garbage",
        tmp_path / "none",
        tmp_path / "both",
        tmp_path,
    )
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 5
    assert "an authority: it signs certificates" in done.stdout
    assert "to Parley a viewer" in done.stdout
    assert "\x1b" not in done.stdout
    assert (made / "ca.key").read_text().splitlines()[1] not in done.output


def test_colours_are_for_terminals(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def colored() -> str:
        return CliRunner().invoke(main, ["certs", "show", str(made / "ca.crt")], color=True).stdout

    assert "\x1b[" in colored()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in colored()


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "cryptography":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    for module in ("parley.certs.program", "parley.certs.issuing"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("parley.certs.program", raising=False)
    monkeypatch.delattr("parley.certs.issuing", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    done = call("create", tmp_path / "certs", "--viewer")
    assert (done.exit_code, "pip install '.[certs]'" in done.stderr) == (2, True)
    assert call("--help").exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be made" in call("create", tmp_path / "certs", "--viewer").stderr
