"""The agent answers the calls of informants: those of a known registration with numbers that rise, the others with a refusal."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from agent.core.events import TryUpscaleReceived
from agent.core.state import RegistrationPhase
from agent.daemon.callbacks import Callbacks
from agent.runner.runner import Runner
from hosting import logs
from hosting.server import Reply, Request
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources
from tests.unit.agent.peers import World

REGISTRATION = UUID(int=9, version=4)
OTHER = UUID(int=10, version=4)


def _register(
    runner: Runner, registration: UUID = REGISTRATION, phase: RegistrationPhase = RegistrationPhase.ACTIVE
) -> None:
    version = InformantProtoVersion.V1_1
    link = replace(runner.state.informant, registration=registration, phase=phase, version=version)
    runner.state = replace(runner.state, informant=link)


def registered(phase: RegistrationPhase = RegistrationPhase.ACTIVE) -> tuple[Runner, Callbacks]:
    """A runner that is registered with its informant, and what its informant calls."""
    runner = World().runner
    _register(runner, phase=phase)
    return runner, Callbacks(lambda: [runner], logs.logger("test"), lambda: 0.0)


async def _call(
    callbacks: Callbacks, name: str, agent_id: UUID | str = REGISTRATION, **body: object
) -> tuple[int, Any]:
    (route,) = [each for each in callbacks.routes() if each.path.endswith("/" + name)]
    request = Request(route.method, "", json.dumps(body).encode(), {}, {"agent_id": str(agent_id)})
    answer = await route.answer(request)
    assert isinstance(answer, Reply)
    return answer.status, json.loads(answer.body) if answer.status == 200 else None


@pytest.mark.parametrize("phase", [RegistrationPhase.REGISTERING, RegistrationPhase.ACTIVE])
async def test_good_answers_are_numbered_from_one_for_each_registration(phase: RegistrationPhase) -> None:
    runner, callbacks = registered(phase=phase)
    numbers = []
    assert (await _call(callbacks, "resume", expectedID=str(OTHER)))[0] == 404
    assert (await _call(callbacks, "resume", expectedID="x"))[0] == 400
    names = ["id", "suspend", "resume", *["try-upscale"] * (phase is RegistrationPhase.ACTIVE)]
    for name in names:
        status, body = await _call(callbacks, name, cpu=True, memory=False, expectedID=str(REGISTRATION))
        assert (status, body["data"]) == (200, {"agentID": str(REGISTRATION)})
        numbers.append(body["sequenceNumber"])
    _register(runner, OTHER)
    _, body = await _call(callbacks, "id", OTHER)
    assert [*numbers, body["sequenceNumber"]] == [*range(1, len(names) + 1), 1], "errors take none"


@pytest.mark.parametrize("name", ["id", "suspend", "resume", "try-upscale"])
async def test_a_body_that_is_empty_or_broken_is_refused_and_changes_nothing(name: str) -> None:
    runner, callbacks = registered()
    (route,) = [each for each in callbacks.routes() if each.path.endswith("/" + name)]
    for body in (b"", b"{", b"[]", b'"{}"'):
        answer = await route.answer(Request(route.method, "", body, {}, {"agent_id": str(REGISTRATION)}))
        assert isinstance(answer, Reply)
        assert answer.status == 400
    assert runner._inbox.empty()


async def test_a_wish_has_the_informants_words_fit_to_be_shown() -> None:
    runner, callbacks = registered()
    for said, taken in (("", ""), ("thr\x1b[2Jottled" + "d" * 400, "throttled" + "d" * 290 + "…")):
        call: dict[str, Any] = {"cpu": True, "memory": False, "expectedID": str(REGISTRATION), "why": said}
        assert (await _call(callbacks, "try-upscale", **call))[0] == 200
        more = MoreResources(cpu=True, memory=False)
        assert runner._inbox.get_nowait() == TryUpscaleReceived(REGISTRATION, more, taken)


async def test_another_id_in_the_path_or_the_body_is_not_found() -> None:
    runner = World().runner
    callbacks = Callbacks(lambda: [runner], logs.logger("test"))
    assert (await _call(callbacks, "id"))[0] == 404
    _register(runner)
    assert (await _call(callbacks, "id", OTHER))[0] == 404
    assert (await _call(callbacks, "id", "nonsense"))[0] == 404
    for name in ("resume", "suspend", "try-upscale"):
        call = {"cpu": True, "memory": True}
        assert (await _call(callbacks, name, REGISTRATION, expectedID=str(OTHER), **call))[0] == 404
        assert (await _call(callbacks, name, OTHER, expectedID=str(REGISTRATION), **call))[0] == 404
    assert runner._inbox.empty()


@pytest.mark.parametrize(
    ("version", "phase"),
    [
        (InformantProtoVersion.V1_0, RegistrationPhase.ACTIVE),
        (InformantProtoVersion.V1_1, RegistrationPhase.SUSPENDED),
    ],
    ids=["in the first version", "while suspended"],
)
async def test_no_try_upscale_is_taken(version: InformantProtoVersion, phase: RegistrationPhase) -> None:
    runner, callbacks = registered(phase=phase)
    runner.state = replace(runner.state, informant=replace(runner.state.informant, version=version))
    call: dict[str, object] = {"cpu": True, "memory": True, "expectedID": str(REGISTRATION)}
    assert (await _call(callbacks, "try-upscale", REGISTRATION, **call))[0] == 400
    assert runner._inbox.empty()


async def test_a_runner_that_has_fallen_behind_says_so() -> None:
    runner, _ = registered()
    seconds = iter(range(1000))
    callbacks = Callbacks(lambda: [runner], logs.logger("test"), lambda: next(seconds))
    answers = [(await _call(callbacks, "id"))[0] for _ in range(80)]
    assert answers == [200] * 64 + [503] * 16
