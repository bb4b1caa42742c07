"""Reads a pod's control groups from its node informant."""

from typing import Final

from hosting.client import Answered, HttpClient
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.informant_pages import PodCgroups

DEADLINE_S: Final = 1.0
"""The informant is on the same node, and reads some files."""


async def read(client: HttpClient, url: str) -> PodCgroups | None:
    """The control groups of the pod whose informant is at `url`; None if it does not tell them."""
    outcome = await client.call("GET", f"{url.rstrip('/')}/cgroups", deadline_s=DEADLINE_S)
    if not isinstance(outcome, Answered) or outcome.status != 200:
        return None
    try:
        return codec.decode(PodCgroups, outcome.body)
    except RemoteProtocolError:
        return None
