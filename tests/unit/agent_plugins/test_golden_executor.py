"""The recorded executor: which operation starts, and how long a path waits after each failure."""

import asyncio
import re
from typing import Any, Final

import pytest

from agent.node.plugins.core.operations import AlreadyExecuting, BackingOff, Operations
from agent.node.plugins.manager import OperationExecutor
from tests.support.servers import Certain
from tests.support.waiting import until
from tests.unit.agent_plugins.recorded_plugins import Case, recorded

CASES: Final = recorded(("executor",))
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC\.?")
REFUSALS: Final = {AlreadyExecuting: "already_exists", BackingOff: "backoff"}
JUST_MORE_S: Final = 0.001


class Player:
    """An executor whose operations do nothing until told, and a clock that only `sleep` moves."""

    def __init__(self) -> None:
        self._clock_s = 100.0
        self._operations = Operations(Certain())
        self._executor = OperationExecutor(
            self._operations, clock=lambda: self._clock_s, on_end=lambda *_: None
        )
        self._ends: dict[str, asyncio.Future[None]] = {}

    async def exec(self, step: Case) -> Case:
        path = step["socket"]
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def operation() -> None:
            await end

        refusal = self._executor.start(path, "", operation)
        if refusal is not None:
            return {"result": REFUSALS[type(refusal)], "error": TIME.sub("$TIME", refusal.text())}
        self._ends[path] = end
        return {"result": "started", "error": None}

    async def complete(self, step: Case) -> Case:
        end = self._ends[step["socket"]]
        if step["outcome"] == "ok":
            end.set_result(None)
        else:
            end.set_exception(RuntimeError(step["error"]))
        await until(lambda: not self._operations.is_pending(step["socket"]))
        return {}

    async def is_operation_pending(self, step: Case) -> Case:
        return {"result": self._operations.is_pending(step["socket"])}

    async def sleep(self, step: Case) -> Case:
        self._clock_s += step["ms"] / 1000
        return {}

    async def fail_repeatedly(self, step: Case) -> Case:
        path, waits_s, durations = step["socket"], [], []
        for attempt in range(step["attempts"]):
            if attempt:
                wait_s = self._operations.retry_in_s(path, self._clock_s)
                assert wait_s is not None
                waits_s.append(round(wait_s * 4) / 4)
                self._clock_s += wait_s + JUST_MORE_S
            started = await self.exec({"socket": path, "operation": "register"})
            assert started["result"] == "started"
            await self.complete({"socket": path, "outcome": "error", "error": "again"})
            refused = await self.exec({"socket": path, "operation": "register"})
            durations += re.findall(r"\((\w+)\)\. Last", refused["error"])
        return {"waits_s": waits_s, "durations_in_error": durations}

    async def end(self) -> None:
        await self._executor.drain(0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_recorded_executor(case: Case) -> None:
    player = Player()
    try:
        for step in case["steps"]:
            results: dict[str, Any] = await getattr(player, step["do"])(step)
            assert results == {key: step[key] for key in results}, step
    finally:
        await player.end()
