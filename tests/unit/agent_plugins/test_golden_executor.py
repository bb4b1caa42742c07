"""The recorded executor: which operation starts, and how long a path waits after each failure."""

import re
from typing import Any, Final

import pytest

from agent.node.plugins.core.plugin_info import PluginInfo
from agent.node.plugins.core.sockets import Refusal, SocketTable
from tests.unit.agent_plugins.go_texts import refused
from tests.unit.agent_plugins.recorded_plugins import Case, recorded

CASES: Final = recorded(("executor",))
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000 UTC\.?")
REFUSALS: Final = {Refusal.ALREADY_EXECUTING: "already_exists", Refusal.BACKING_OFF: "backoff"}
JUST_MORE_S: Final = 0.001


class Player:
    """The operations of a table of sockets, and a clock that only `sleep` moves. No failure has the help of chance."""

    def __init__(self) -> None:
        self._clock_s = 100.0
        self._table = SocketTable()

    def exec(self, step: Case) -> Case:
        path = step["socket"]
        refusal = self._table.begin(PluginInfo(path), self._clock_s)
        if refusal is not None:
            text = refused(self._table.at(path), refusal)
            return {"result": REFUSALS[refusal], "error": TIME.sub("$TIME", text)}
        return {"result": "started", "error": None}

    def complete(self, step: Case) -> Case:
        error = None if step["outcome"] == "ok" else step["error"]
        self._table.ended(self._table.at(step["socket"]), error, 0.0, self._clock_s)
        return {}

    def is_operation_pending(self, step: Case) -> Case:
        return {"result": self._table.at(step["socket"]).is_busy}

    def sleep(self, step: Case) -> Case:
        self._clock_s += step["ms"] / 1000
        return {}

    def fail_repeatedly(self, step: Case) -> Case:
        path, waits_s, durations = step["socket"], [], []
        for attempt in range(step["attempts"]):
            if attempt:
                wait_s = self._table.at(path).retry_in_s(self._clock_s)
                assert wait_s is not None
                waits_s.append(round(wait_s * 4) / 4)
                self._clock_s += wait_s + JUST_MORE_S
            started = self.exec({"socket": path, "operation": "register"})
            assert started["result"] == "started"
            self.complete({"socket": path, "outcome": "error", "error": "again"})
            again = self.exec({"socket": path, "operation": "register"})
            durations += re.findall(r"\((\w+)\)\. Last", again["error"])
        return {"waits_s": waits_s, "durations_in_error": durations}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_recorded_executor(case: Case) -> None:
    player = Player()
    for step in case["steps"]:
        results: dict[str, Any] = getattr(player, step["do"])(step)
        assert results == {key: step[key] for key in results}, step
