"""The agent's log lines of decisions: one for each that changes, is refused or could not be, always with the same keys."""

from agent.core import events
from agent.core.state import PermitRequest
from agent.runner.runner_log import RunnerLog
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import Resources
from tests.support.amounts import cu
from tests.support.log_keys import AGENT_KEYS, OF_EVERY_LINE
from tests.support.virtual_time import now_s, virtually
from tests.support.waiting import until
from tests.unit.agent.driver import grant, refusal
from tests.unit.agent.peers import World, running
from tests.unit.hosting.raw_peers import Lines, recorded


def _logged(made: World) -> Lines:
    log, lines = recorded()
    made.runner._runner_log = RunnerLog(log)
    return lines


def _lines(lines: Lines, event: str) -> Lines:
    return [line for line in lines if line["event"] == event]


@virtually
async def test_every_decision_has_the_same_keys_and_says_what_was_decided() -> None:
    made = World()
    lines = _logged(made)
    async with running(made) as task:
        made.policy.units = 3
        await until(lambda: made.backend.size == cu(3), beside=task)
        await until(lambda: _lines(lines, "permit"), beside=task)
    decisions = [line for line in lines if line["event"] in {"goal", "permit", "resize"}]
    assert {line["event"] for line in decisions} == {"goal", "permit", "resize"}
    assert {frozenset(line) for line in decisions} == {AGENT_KEYS | OF_EVERY_LINE}
    assert {line["log_level"] for line in decisions} == {"info"}
    assert _lines(lines, "goal")[-1]["goal"] == _lines(lines, "resize")[-1]["target"] == str(cu(3))
    assert _lines(lines, "permit")[-1]["permit"] == str(cu(3))
    assert _lines(lines, "permit")[-1]["seq"] >= 1


@virtually
async def test_a_standing_denial_is_one_line_with_its_reason() -> None:
    made = World()
    lines = _logged(made)
    full = Reason(
        ReasonCode.NODE_HEADROOM, "the other holders leave 2 CPU of the node to this VM", "cpu", 5.0
    )

    def deny(request: PermitRequest) -> events.PermitGranted:
        permit = Resources(min(2000, request.resources.vcpu_milli), cu(2).memory_bytes)
        return grant(request, permit, sent_s=now_s(), reasons=(full,))

    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [deny] * 5
        made.policy.units = 5
        await until(lambda: not made.scheduler.script, beside=task)
    (line,) = [line for line in _lines(lines, "permit") if line["reason"] is not None]
    assert (line["reason"], line["resource"], line["retry_after_s"]) == ("node-headroom", "cpu", 5.0)
    assert line["message"] == full.message


@virtually
async def test_an_error_of_the_scheduler_is_one_warning_with_its_code() -> None:
    made = World()
    lines = _logged(made)
    async with running(made) as task:
        await until(lambda: made.held.now() == cu(2), beside=task)
        made.scheduler.script = [
            lambda request: refusal(request, 429, ErrorCode.OVERLOADED),
            lambda request: refusal(request, 429, ErrorCode.OVERLOADED),
        ]
        made.policy.units = 3
        await until(lambda: made.backend.size == cu(3), beside=task)
    (line,) = _lines(lines, "no permit")
    assert (line["log_level"], line["reason"]) == ("warning", "overloaded")
    assert line["message"]
    assert frozenset(line) == AGENT_KEYS | OF_EVERY_LINE
