"""`parley explain`: asks, puts the answer together, and prints it."""

import asyncio
import difflib
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from hosting.lifecycle import Stop
from parley.explain.core.causes import NOT_SCALED, UNKNOWN
from parley.explain.core.evidence import CauseCode, Evidence
from parley.explain.core.lines import SizeExplanation, answer
from parley.listing import output as outputs
from parley.listing.core.decisions import line
from parley.reach.asking import decoded, state
from parley.reach.ports import Answered, Got, NoAnswer, Reach
from parley.reach.ways import path_of
from parley.top.texts import clean
from protocol.agent_pages import AgentVms, VmInFull, read
from protocol.explaining import Explanation, Presence
from protocol.pages import DiagnosisShown

MAX_AGENTS: Final = 256
"""So many agents are asked if nobody knows the VM's node."""
AT_ONCE: Final = 16
MAX_NAMES: Final = 3
MAX_NAME: Final = 160
_CLOSE: Final = 0.6
_MAX_CUTOFF_NAMES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Gathered:
    """The evidence, and the documents as they came (None if none came)."""

    evidence: Evidence
    agent: Mapping[str, Any] | None
    scheduler: Mapping[str, Any] | None


async def gather(reach: Reach, vm: str, decisions: int | None = None) -> Gathered:
    """Ask both programs about `NAMESPACE/NAME`, which a path can carry. `decisions` is how many of the last ones are told; None: a few."""
    path = path_of(vm)
    assert path is not None, vm
    count = f"?n={decisions}" if decisions is not None else ""
    answer = await reach.scheduler(f"/v1/explain/{path}{count}")
    explained = decoded(answer, Explanation) if isinstance(answer, Got) else answer
    node = explained.node if isinstance(explained, Explanation) else ""
    waits = await _diagnosis(reach, path) if not _is_placed(explained) else None
    told = await _agent(reach, node, vm)
    agent = decoded(told, VmInFull, read) if isinstance(told, Got) else told
    return Gathered(
        Evidence(vm, agent, explained, waits),
        told.document if isinstance(told, Got) else None,
        answer.document if isinstance(answer, Got) else None,
    )


def _is_placed(explained: Explanation | NoAnswer) -> bool:
    """Whether the scheduler knows the VM on a node; nothing else is asked where it does not answer at all."""
    if isinstance(explained, NoAnswer):
        return explained.code not in UNKNOWN
    return explained.presence is Presence.LIVE


async def _diagnosis(reach: Reach, path: str) -> DiagnosisShown | None:
    """Why no node was found for a pod; None if it does not wait for one."""
    answer = await reach.scheduler(f"/v1/scheduling/diagnoses/{path}")
    found = decoded(answer, DiagnosisShown) if isinstance(answer, Got) else answer
    return found if isinstance(found, DiagnosisShown) else None


async def _told(reach: Reach, agent: str, vm: str) -> Answered:
    """An agent's answer about the VM; a fault if that is a document about something else."""
    answer = await reach.agent(agent, f"/v1/vms/{path_of(vm)}")
    if isinstance(answer, Got) and answer.document.get("vm") != vm:
        return NoAnswer(f"{answer.peer}: this is no agent of Parley: its answer is not about {vm}")
    return answer


async def _agent(reach: Reach, node: str, vm: str) -> Answered:
    """The answer of the VM's agent: that of its node, else the best of all."""
    known = await reach.agent_of(node) if node else None
    if known is not None:
        return await _told(reach, known, vm)
    agents = await reach.agents()
    if isinstance(agents, NoAnswer):
        return agents
    if not agents:
        return NoAnswer("there is no agent to ask")
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(agent: str) -> Answered:
        async with gate:
            return await _told(reach, agent, vm)

    answers = await asyncio.gather(*(one(agent) for agent in agents[:MAX_AGENTS]))
    best = min(answers, key=_rank)
    if isinstance(best, NoAnswer) and len(agents) > MAX_AGENTS:
        return NoAnswer(
            f"only {MAX_AGENTS} of {len(agents)} agents were asked; {best.fault}", best.status, best.code
        )
    return best


def _rank(answer: Answered) -> int:
    """The rank of an answer, best first: an agent that serves the VM, one that lies dormant, one that will not scale it, silence,
    "unknown"."""
    if isinstance(answer, Got):
        return 1 if answer.document.get("state") == "dormant" else 0
    if answer.code == NOT_SCALED:
        return 2
    return 4 if answer.code in UNKNOWN else 3


async def alike(reach: Reach, vm: str) -> list[str]:
    """Names that may be meant by one that nobody knows, the likeliest first."""
    known = await state(reach, max_pages=20)
    names = [each.vm for each in known.vms] if not isinstance(known, NoAnswer) else []
    if not names:
        names = await _names_of_agents(reach)
    return close(vm, [clean(name, MAX_NAME) for name in names[:_MAX_CUTOFF_NAMES]])


async def _names_of_agents(reach: Reach) -> list[str]:
    agents = await reach.agents()
    if isinstance(agents, NoAnswer):
        return []
    answers = await asyncio.gather(*(reach.agent(agent, "/v1/vms") for agent in agents[:AT_ONCE]))
    documents = (decoded(answer, AgentVms, read) for answer in answers if isinstance(answer, Got))
    return [each.vm for found in documents if isinstance(found, AgentVms) for each in found.vms]


def close(vm: str, names: list[str]) -> list[str]:
    """The names of other namespaces first, then those that are spelt alike."""
    wanted = vm.partition("/")[2]
    elsewhere = [name for name in names if name.partition("/")[2] == wanted]
    alike_names = difflib.get_close_matches(vm, names, n=MAX_NAMES, cutoff=_CLOSE)
    return list(dict.fromkeys((*elsewhere, *alike_names)))[:MAX_NAMES]


def run(reach: AbstractAsyncContextManager[Reach], vm: str, decisions: int, output: str) -> int:
    """Print why `NAMESPACE/NAME` has its size; the exit code."""

    async def main(_: Stop) -> int:
        async with reach as asked:
            found = await gather(asked, vm, decisions or None)
            told = answer(found.evidence)
            names = await alike(asked, vm) if told.cause.code == CauseCode.UNKNOWN_VM else []
        if output == "json":
            click.echo(json.dumps(document(found, told, names)))
        else:
            _print(found, told, names, decisions)
        return 0 if told.is_known else outputs.NOBODY

    return outputs.run(main)


def _print(found: Gathered, told: SizeExplanation, names: list[str], decisions: int) -> None:
    is_error = not told.is_known
    for each in told.lines:
        click.echo(each, err=is_error)
    if names:
        click.echo(f"did you mean {' or '.join(names)}?", err=True)
    scheduler = found.evidence.scheduler
    if not decisions or is_error:
        return
    if isinstance(scheduler, NoAnswer):
        click.echo(f"no decisions: {clean(scheduler.fault, 500)}", err=True)
        return
    for decision in scheduler.decisions[:decisions]:
        click.echo(line(decision))


def document(found: Gathered, told: SizeExplanation, names: list[str]) -> dict[str, Any]:
    """The answer for scripts: the cause, the lines, and both documents as they came."""
    evidence = found.evidence
    return {
        "vm": evidence.vm,
        "cause": {
            "code": told.cause.code,
            "meaning": told.cause.meaning,
            "remedy": told.cause.advice.remedy,
            "detail": clean(told.cause.detail, 500),
            "class": told.cause.rejection,
        },
        "lines": list(told.lines),
        "didYouMean": names,
        "scheduler": found.scheduler if isinstance(evidence.scheduler, Explanation) else None,
        "schedulerFault": evidence.scheduler.fault if isinstance(evidence.scheduler, NoAnswer) else None,
        "diagnosis": msgspec.to_builtins(evidence.diagnosis),
        "agent": found.agent,
        "agentFault": evidence.agent.fault if isinstance(evidence.agent, NoAnswer) else None,
    }
