"""How a call to the API server can fail."""

import json
import re
from typing import Any, Final

from protocol.texts import clean

_MAX_RETRY_AFTER_S: Final = 2**31 - 1
"""A Status has it as an int32. Python's whole numbers have no end, and one of 400 digits is no float."""
_SECONDS: Final = re.compile("[0-9]{1,10}")
MAX_REASON: Final = 128
MAX_MESSAGE: Final = 2000
"""Characters of a message that are kept: admission webhooks of others write any text there."""


class KubernetesError(Exception):
    """A call came to nothing. The text is for a person."""


class UnreachableError(KubernetesError):
    """No usable answer came from the API server: whether the call had an effect is not known."""


class CredentialsError(KubernetesError):
    """The credentials cannot be used."""


class RefusedError(KubernetesError):
    """The API server answered with an error. `reason` is the machine's word, such as `Conflict`; empty if there is none. `causes` are
    the machine's words for what is behind, such as `DisruptionBudget`."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.causes = causes

    @property
    def is_not_found(self) -> bool:
        """There is no such object, or no such type of objects."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """The object has changed since it was read; or, on creation, it exists already."""
        return self.status == 409

    @property
    def is_expired(self) -> bool:
        """The version that was named is too old for the server's memory: list again."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    @property
    def is_overloaded(self) -> bool:
        """The server asks for patience."""
        return self.status in {429, 503, 504}

    @property
    def is_budget(self) -> bool:
        """A PodDisruptionBudget forbids an eviction now. Source: policy/v1, the cause of an eviction's 429."""
        return "DisruptionBudget" in self.causes


def is_status(text: bytes) -> bool:
    """Whether an error's body is a Status object, which is the API server's own word, and not that of a program behind its proxy."""
    found = _object_in(text)
    return found is not None and (found.get("kind"), found.get("apiVersion")) == ("Status", "v1")


def refusal(status: int, text: bytes, retry_after: str | None = None) -> RefusedError:
    """The error in an answer: a Status object, or any text."""
    found = _object_in(text)
    if found is None:
        found = {"message": clean(text.decode(errors="replace"), 300)}
    if retry_after is not None and _SECONDS.fullmatch(retry_after):
        found = {"details": {"retryAfterSeconds": int(retry_after)}} | found
    return refusal_of(status, found)


def _object_in(text: bytes) -> dict[str, Any] | None:
    """The JSON object that a body is; None if it is anything else, or nested deeper than can be read."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def refusal_of(status: int, found: dict[str, Any]) -> RefusedError:
    """The error in a Status object, such as an ERROR event of a watch carries."""
    details = found.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    retry_after_s = None
    if isinstance(seconds, int | float) and 0 <= seconds <= _MAX_RETRY_AFTER_S:
        retry_after_s = float(seconds)
    causes = details.get("causes") if isinstance(details, dict) else None
    known = [each for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []
    reasons = tuple(str(each.get("reason") or "") for each in known)
    return RefusedError(
        status,
        clean(str(found.get("reason") or ""), MAX_REASON),
        clean(str(found.get("message") or ""), MAX_MESSAGE),
        retry_after_s,
        reasons,
    )
