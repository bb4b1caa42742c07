"""Which secret an informant begins with, and that the one of the firmware is not in its memory before an agent comes."""

from pathlib import Path
from uuid import UUID

import pytest

from hosting.signed_link import OF_AGENT, SecretFileError, SignedLink
from hosting.signing import HEADER, Secret, SignedRequest
from informant import program


def _file(path: Path, mode: int = 0o600) -> Path:
    path.write_text(Secret(b"s" * 32).written())
    path.chmod(mode)
    return path


def test_the_firmwares_secret_is_read_when_an_agent_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FIRMWARE_SECRET", _file(tmp_path / "raw"))
    link = program._link(None, is_real=True)
    assert link is not None
    assert link._verifier is None
    header = SignedLink(tmp_path / "raw", OF_AGENT).headers(UUID(int=1), "GET", "/machine")[HEADER]
    assert link.refusal(header, SignedRequest("GET", "/machine", b"")) is None


def test_a_secret_that_cannot_be_used_is_no_reason_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FIRMWARE_SECRET", _file(tmp_path / "raw", 0o644))
    with pytest.raises(SecretFileError):
        program._link(None, is_real=True)
    with pytest.raises(SecretFileError, match="is missing"):
        program._link(tmp_path / "nowhere", is_real=True)


def test_without_any_secret_there_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FIRMWARE_SECRET", tmp_path / "nowhere")
    assert program._link(None, is_real=True) is None
    monkeypatch.setattr(program, "FIRMWARE_SECRET", _file(tmp_path / "raw"))
    assert program._link(None, is_real=False) is None, "a synthetic load is no guest"
