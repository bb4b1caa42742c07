"""The agents of a load, one small record for each VM, and the bytes that they send.

The fields of a request are fixed per VM but for the amounts, the sequence number and the scheduler's instance, so it is
joined from parts that were built before. The mix: an agent's first request names its use; then 3 of 4 are unchanged
renewals and 1 of 4 changes the permit, growing by one unit and returning in turn.
"""

import functools
import uuid
from dataclasses import dataclass
from typing import Any

from benchmarks.load import cluster

MIX = "3 of 4 unchanged renewals, 1 of 4 changes the permit (one unit up, one unit down in turn)"
NOBODY = b"null"
"""The instance that an agent names before it has heard from any scheduler."""
LOW, HIGH = 2, 3
"""The sizes of VMs, in units of 1 CPU and 1 GiB."""

_STARTED_AT_MS = 1_763_719_200_000
_MAX_REQUEST_BYTES = 1024


class Agent:
    """One VM's agent. `held` is also what is in use: resizes take no time here.

    `want`, `claim` and `instance` are those of the request that was made last, `number` is its sequence number. `token` is that of the
    last answer: the agents are old, and each the only one of its VM.
    """

    __slots__ = (
        "_before",
        "_head",
        "_step",
        "agent_id",
        "claim",
        "held",
        "index",
        "instance",
        "number",
        "token",
        "want",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.agent_id = str(uuid.UUID(int=(0x6F1D3C9A52B74E80 << 64) | (0x8D1F << 48) | index))
        self._head = (
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Parley-Agent: {self.agent_id}\r\nContent-Length: "
        ).encode()
        self._before = tuple(_before(index, self.agent_id, units) for units in (LOW, HIGH))
        self._step = index & 3  # neighbours are at different places of the mix
        self.held = initial_units(index)
        self.number = 0
        self.want = self.claim = self.held
        self.instance = NOBODY
        self.token = b""

    def next_units(self) -> int:
        """The units that the mix asks for next."""
        self._step += 1
        return self.held if self._step & 3 else LOW + HIGH - self.held

    def ask(self, want: int, instance: bytes) -> bytes:
        """The body of a new request. The agent counts on no more than it asks for from here on."""
        self.number += 1
        self.want, self.claim, self.instance = want, self.held, instance
        self.held = min(self.held, want)
        return self.again()

    def again(self) -> bytes:
        """The body of the last request once more."""
        body = b"%b%d%b" % (
            self._before[self.want - LOW],
            self.number,
            _after(self.instance, self.want, self.claim, self.token),
        )
        assert len(body) <= _MAX_REQUEST_BYTES
        return body

    def plain(self, want: int) -> bytes:
        """The body of a request without the extension, as a published agent writes it."""
        self.want = want
        self.held = min(self.held, want)
        return _plain(self.index, want)

    def http(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)


def initial_units(index: int) -> int:
    """The units of the agent's VM at first: half of them have one unit more, so that as many grow as return."""
    return HIGH if index >> 2 & 1 else LOW


def batch(agents: list[Agent], bodies: list[bytes]) -> bytes:
    """One HTTP request to `/batch` with the bodies of these agents."""
    body = b"[%b]" % b",".join(bodies)
    head = (
        b"POST /batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Parley-Agent: %b\r\nContent-Length: %d\r\n\r\n"
    )
    return head % (agents[0].agent_id.encode(), len(body)) + body


def _before(index: int, agent_id: str, units: int) -> bytes:
    """A body up to the sequence number, in the order of fields that our agents write."""
    return (
        f'{{"protoVersion":2,"pod":{{"name":"{cluster.name_of(index)}","namespace":"{cluster.NAMESPACE}"}},'
        f'"resources":{{"vCPUs":{units},"mem":{units}}},"metrics":{{"loadAvg1M":0.5,"loadAvg5M":0.25}},'
        f'"agentID":"{agent_id}","agentStartedAtMs":{_STARTED_AT_MS},"podUID":"{cluster.uid_of(index)}",'
        '"sequenceNumber":'
    ).encode()


def _plain(index: int, units: int) -> bytes:
    return (
        f'{{"protoVersion":2,"pod":{{"name":"{cluster.name_of(index)}","namespace":"{cluster.NAMESPACE}"}},'
        f'"resources":{{"vCPUs":{units},"mem":{units}}},"metrics":{{"loadAvg1M":0.5,"loadAvg5M":0.25}}}}'
    ).encode()


def _amount(units: int) -> str:
    return f'{{"cpu":"{units}","memory":"{units}Gi"}}'


@functools.lru_cache(64)
def _after(instance: bytes, want: int, claim: int, token: bytes) -> bytes:
    """A body from behind the sequence number to its end."""
    raw = f'{{"resources":{_amount(want)},"lastPermit":{_amount(claim)},"computeUnit":{_amount(1)}}}'
    proof = b',"token":"%b"' % token if token else b""
    return b',"seenEpoch":0,"schedulerInstance":%b,"raw":%b%b}' % (instance, raw.encode(), proof)


@dataclass(frozen=True, slots=True)
class Permit:
    """The contents of a reply."""

    number: int
    instance: bytes
    units: int
    reasons: tuple[str, ...]
    token: bytes = b""

    @property
    def is_unsettled(self) -> bool:
        """Whether the scheduler does not know the VM's use yet."""
        return "unsettled" in self.reasons


def read(content: Any) -> Permit:
    """Read the JSON of a reply. Raises `ValueError` if it is no whole permit with the extension."""
    try:
        amount = content["raw"]["permit"]
        units = int(amount["cpu"])
        if amount["memory"] != (f"{units}Gi" if units else "0"):
            raise ValueError(f"the permit {amount} is no whole number of units")
        reasons = tuple(reason["code"] for reason in content["reasons"])
        instance = f'"{content["schedulerInstance"]}"'.encode()
        return Permit(content["sequenceNumber"], instance, units, reasons, content.get("token", "").encode())
    except (KeyError, TypeError) as error:
        raise ValueError(f"no reply with the extension: {error!r} is missing or wrong") from None
