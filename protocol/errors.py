"""The two protocol errors, by side: `LocalProtocolError` when we are wrong, `RemoteProtocolError` when the peer is."""

from dataclasses import dataclass

from protocol.reasons import ErrorCode


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input: its place, the value that was found, and the rule that it breaks."""

    path: str
    rule: str
    value: str = ""

    def __str__(self) -> str:
        found = f" (found {self.value})" if self.value else ""
        return f"{self.path or '(body)'}: {self.rule}{found}"


class ProtocolError(Exception):
    """A message breaks the protocol. `faults` names every field at fault, all at once."""

    def __init__(self, message: str, faults: tuple[Fault, ...] = ()) -> None:
        self.message = message
        self.faults = faults
        super().__init__(message + "".join(f"; {fault}" for fault in faults))


class LocalProtocolError(ProtocolError):
    """We are about to send something that the protocol does not allow: a fault of ours, never of the peer."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow. `status` is the HTTP status that answers it."""

    def __init__(
        self,
        message: str,
        faults: tuple[Fault, ...] = (),
        *,
        status: int = 400,
        code: ErrorCode = ErrorCode.MALFORMED,
    ) -> None:
        self.status = status
        self.code = code
        super().__init__(message, faults)
