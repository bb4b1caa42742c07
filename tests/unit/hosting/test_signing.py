"""Signatures by a VM's secret: the header, its checks, and the file of the secret."""

import os
import pickle
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.signed_link import (
    OF_AGENT,
    OF_INFORMANT,
    SecretFileError,
    SignedLink,
    check_file,
    read_secret,
)
from hosting.signing import (
    HEADER,
    MOST_REGISTRATIONS,
    TOLERANCE_MS,
    Secret,
    SignedRequest,
    Verifier,
    sign,
)
from hosting.token_bucket import TokenBucket

SECRET, OTHER = Secret(b"s" * 32), Secret(b"t" * 32)
REGISTRATION = UUID(int=9, version=4)
REQUEST = SignedRequest("POST", "/agents/x/try-upscale", b'{"cpu":true}')
NOW_MS = 1_800_000_000_000


def _signed(
    number: int, *, at_ms: int = NOW_MS, registration: UUID = REGISTRATION, secret: Secret = SECRET
) -> str:
    return sign(secret, "informant to agent", registration, REQUEST, unix_ms=at_ms, number=number)


def _reason(
    verifier: Verifier, header: str | None, request: SignedRequest = REQUEST, now_ms: int = NOW_MS
) -> str:
    refused = verifier.check(header, request, now_ms)
    return "" if refused is None else refused.reason


def test_a_secret_never_shows_itself() -> None:
    digits = SECRET.written().strip()
    verifier = Verifier(SECRET, "informant to agent")
    assert not any(digits in text or "ssss" in text for text in (repr(SECRET), str(SECRET), repr(verifier)))
    assert Secret.parse(SECRET.written().encode()) == SECRET != OTHER
    with pytest.raises(TypeError):
        pickle.dumps(SECRET)


@pytest.mark.parametrize(
    "content", [b"", b"00" * 31, b"00" * 33, b"zz" * 32, b"00" * 32 + b" x", b"\xff" * 64]
)
def test_a_faulty_file_is_told_without_its_content(content: bytes) -> None:
    with pytest.raises(ValueError, match="must hold 64 hexadecimal digits") as told:
        Secret.parse(content)
    assert len(content) < 2 or content.decode(errors="replace") not in str(told.value)


def test_a_signed_request_is_believed_once() -> None:
    verifier = Verifier(SECRET, "informant to agent")
    assert [_reason(verifier, _signed(number)) for number in (1, 1, 3, 2, 3, 4)] == [
        "", "replayed", "", "replayed", "replayed", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [
        SignedRequest("GET", REQUEST.path, REQUEST.body),
        SignedRequest("POST", "/agents/x/suspend", REQUEST.body),
        SignedRequest("POST", REQUEST.path, b'{"cpu":false}'),
        SignedRequest("POST", REQUEST.path + "{", REQUEST.body[1:]),
    ],
)
def test_a_signature_holds_for_its_request_only(request_: SignedRequest) -> None:
    assert _reason(Verifier(SECRET, "informant to agent"), _signed(1), request_) == "forged"


def test_a_signature_holds_for_its_secret_direction_and_registration_only() -> None:
    assert _reason(Verifier(OTHER, "informant to agent"), _signed(1)) == "forged"
    assert _reason(Verifier(SECRET, "agent to informant"), _signed(1)) == "forged"
    verifier = Verifier(SECRET, "informant to agent")
    refused = verifier.check(_signed(1), REQUEST, NOW_MS, UUID(int=10))
    assert refused is not None
    assert refused.reason == "forged"
    told = _signed(1).replace(str(REGISTRATION), str(UUID(int=10)))
    assert _reason(verifier, told) == "forged"
    assert _reason(verifier, _signed(1)) == "", "refused requests use no number up"


@pytest.mark.parametrize(
    ("off_ms", "reason"),
    [(-TOLERANCE_MS, ""), (TOLERANCE_MS, ""), (-TOLERANCE_MS - 1, "clock"), (TOLERANCE_MS + 1, "clock")],
)
def test_the_time_must_be_near(off_ms: int, reason: str) -> None:
    assert _reason(Verifier(SECRET, "informant to agent"), _signed(1, at_ms=NOW_MS + off_ms)) == reason


def test_a_refusal_says_how_far_off_the_clock_is() -> None:
    refused = Verifier(SECRET, "informant to agent").check(_signed(1, at_ms=NOW_MS - 75_000), REQUEST, NOW_MS)
    assert refused is not None
    assert refused.why == "its time is 75 s behind the clock here; 60 s are tolerated"


def test_memory_is_bounded_and_forgetting_lets_no_replay_in() -> None:
    verifier = Verifier(SECRET, "informant to agent")
    many = [UUID(int=number) for number in range(MOST_REGISTRATIONS)]
    assert {_reason(verifier, _signed(1, registration=each)) for each in many} == {""}
    late = _signed(1, registration=UUID(int=1_000), at_ms=NOW_MS)
    assert _reason(verifier, late) == "crowded"
    later_ms = NOW_MS + TOLERANCE_MS + 1
    assert _reason(verifier, _signed(2, registration=UUID(int=1_000), at_ms=later_ms), now_ms=later_ms) == ""
    assert len(verifier._seen) == 1
    assert _reason(verifier, _signed(1, registration=many[0]), now_ms=later_ms) == "clock"


@given(st.text() | st.from_regex(r"v1 [0-9a-f-]{36} [0-9]{1,16} [0-9]{1,16} [0-9a-f]{64}"))
def test_any_other_header_is_refused(header: str) -> None:
    assert _reason(Verifier(SECRET, "informant to agent"), header) in {"unsigned", "malformed", "forged"}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 5), st.integers(-90_000, 90_000), st.integers(0, 200_000)
        ),
        max_size=30,
    )
)
def test_no_request_is_believed_twice_and_numbers_rise(steps: list[tuple[int, int, int, int]]) -> None:
    verifier, now_ms = Verifier(SECRET, "informant to agent"), NOW_MS
    believed: dict[tuple[UUID, int, int], None] = {}
    highest: dict[UUID, int] = {}
    for who, number, off_ms, waited_ms in steps:
        now_ms += waited_ms
        registration, at_ms = UUID(int=who), now_ms + off_ms
        header = _signed(number, at_ms=at_ms, registration=registration)
        if _reason(verifier, header, now_ms=now_ms) == "":
            assert abs(off_ms) <= TOLERANCE_MS
            assert number > highest.get(registration, -1)
            highest[registration] = number
            believed[registration, number, at_ms] = None
        for again in believed:
            header = _signed(again[1], at_ms=again[2], registration=again[0])
            assert _reason(verifier, header, now_ms=now_ms) != ""


def _file(path: Path, secret: Secret = SECRET, mode: int = 0o600) -> Path:
    path.write_text(secret.written())
    path.chmod(mode)
    return path


def test_a_fit_file_is_read_also_by_a_link(tmp_path: Path) -> None:
    file = _file(tmp_path / "secret", mode=0o640)
    (tmp_path / "link").symlink_to(file)
    assert read_secret(file) == read_secret(tmp_path / "link") == SECRET


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o601])
def test_a_file_that_others_reach_is_refused_also_by_a_link(tmp_path: Path, mode: int) -> None:
    file = _file(tmp_path / "secret", mode=mode)
    (tmp_path / "link").symlink_to(file)
    for each in (file, tmp_path / "link"):
        for look in (read_secret, check_file):
            with pytest.raises(SecretFileError, match="others must not reach it"):
                look(each)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, told in (("pipe", "no regular file"), (".", "no regular file"), ("nowhere", "is missing")):
        with pytest.raises(SecretFileError, match=told):
            read_secret(tmp_path / path)
    with pytest.raises(SecretFileError, match="no regular file"):
        read_secret(Path("/dev/zero"))


def test_two_ends_believe_each_other_also_after_a_new_secret(tmp_path: Path) -> None:
    file, now_s = _file(tmp_path / "secret"), [0.0]
    agent = SignedLink(file, OF_AGENT, now_s=lambda: now_s[0])
    informant = SignedLink(file, OF_INFORMANT, now_s=lambda: now_s[0])

    def says(sender: SignedLink, hearer: SignedLink) -> str:
        headers = sender.headers(REGISTRATION, REQUEST.method, REQUEST.path, REQUEST.body)
        refused = hearer.refusal(headers[HEADER], REQUEST, REGISTRATION)
        return "" if refused is None else refused.reason

    assert says(agent, informant) == says(informant, agent) == ""
    assert says(agent, agent) == says(informant, informant) == "forged", "nothing comes back to its sender"
    _file(file, OTHER)
    now_s[0] = 10.0
    assert agent.look_again()
    assert says(agent, informant) == "", "the other end looks at its file before it refuses"
    file.unlink()
    now_s[0] = 20.0
    assert not agent.look_again()
    assert says(agent, informant) == "", "the secret that was read last stays"


def test_without_a_secret_nothing_is_signed_or_believed(tmp_path: Path) -> None:
    link = SignedLink(tmp_path / "nowhere", OF_AGENT, now_s=lambda: 5.0)
    with pytest.raises(SecretFileError, match="nowhere is missing"):
        link.headers(REGISTRATION, "PUT", "/upscale")
    refused = link.refusal(_signed(1), REQUEST)
    assert refused is not None
    assert refused.reason == "no-secret"


def test_a_saved_guest_goes_by_its_hardware_clock(tmp_path: Path) -> None:
    file = _file(tmp_path / "secret")
    agent = SignedLink(file, OF_AGENT, (lambda: NOW_MS,))
    guest = SignedLink(file, OF_INFORMANT, (lambda: NOW_MS - 86_400_000, lambda: NOW_MS))
    header = agent.headers(REGISTRATION, REQUEST.method, REQUEST.path, REQUEST.body)[HEADER]
    assert guest.refusal(header, REQUEST) is None
    header = guest.headers(REGISTRATION, REQUEST.method, REQUEST.path, REQUEST.body)[HEADER]
    assert agent.refusal(header, REQUEST) is None, "and signs by it"


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(20, 5)
    assert sum(bucket.take(1000.0) for _ in range(50)) == 20
    assert sum(bucket.take(1000.0 + tenth / 10) for tenth in range(1, 51)) == 25
    assert sum(bucket.take(9000.0) for _ in range(50)) == 20
