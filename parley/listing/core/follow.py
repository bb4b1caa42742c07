"""The place in the stream of a scheduler's decisions, also across restarts of the scheduler. Pure."""

from dataclasses import dataclass, replace
from typing import Final

from protocol.explaining import Decisions, DecisionShown

FULL: Final = 500
"""With so many in one answer there may be more at once."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The next question: the decisions after number `after` of the scheduler process `instance`. `is_from_start` wants all that the
    process remembers at first."""

    is_from_start: bool = False
    instance: str = ""
    after: int = 0

    @property
    def is_first(self) -> bool:
        """Whether nothing was heard yet."""
        return not self.instance

    @property
    def query(self) -> str:
        """The parameters of the question. Only the first look that wants nothing older takes the newest decisions. After 0 anybody else
        begins with the oldest one: there may be more than one answer holds, after a restart and if nothing had been decided at the last
        look."""
        is_from_oldest = self.is_from_start or not self.is_first
        return f"after={self.after}&limit={FULL}" + ("&oldest=true" if is_from_oldest else "")

    def heard(self, found: Decisions) -> "FollowStep":
        """The decisions to tell after an answer, and the next question."""
        ahead = replace(self, instance=found.instance, after=found.next)
        if self.is_first:
            decisions = found.decisions if self.is_from_start else ()
            return FollowStep(ahead, decisions, is_more=len(decisions) >= FULL)
        if found.instance != self.instance:
            # The numbers begin anew: the last decision that was told is after a number of the process before it.
            note = "another scheduler process answers: its decisions follow"
            return FollowStep(replace(ahead, after=0), (), note, is_more=True)
        note = "decisions were forgotten before they could be told" if found.are_lost else ""
        return FollowStep(ahead, found.decisions, note, is_more=len(found.decisions) >= FULL)


@dataclass(frozen=True, slots=True)
class FollowStep:
    """The result of an answer. `note` is for people; `is_more` asks again at once."""

    follow: Follow
    decisions: tuple[DecisionShown, ...]
    note: str = ""
    is_more: bool = False
