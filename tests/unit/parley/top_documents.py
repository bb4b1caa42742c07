"""Documents for the tests of `parley top`, in the form in which the agent writes them."""

from typing import Any

import msgspec

from protocol.agent_pages import AgentVms, VmInFull, VmInShort, read
from protocol.explaining import Nodes

NASTY = (
    "[red]red[/red] [/] [@click=app.quit()]click[/] [link=file:///etc]x[/link]",
    "\x1b[2J\x1b[31mcleared\x1b[0m\x1b]0;title\x07 \x9b1m",
    "line\nline\r\tline\x00\x7f\u2028\u202ebidi\u200b",
    "\ud800 alone",
    "漢字" * 200,
    "$primary {braces} %s \\[",
    "",
    " ",
)
"""Texts that a terminal, rich or textual would do something with."""


def amount(cpus: int) -> dict[str, str]:
    return {"cpu": str(cpus), "memory": f"{cpus}Gi"}


def vm(name: str, cpus: int = 2, **other: Any) -> dict[str, Any]:
    """One VM of `/v1/vms`; without other words the goal of each resource has the reason of the whole."""
    reason = other.get("reason", "as it should be")
    return {
        "vm": name if "/" in name else f"default/{name}",
        "agentID": "00000000-0000-4000-8000-000000000007",
        "size": amount(cpus),
        "target": amount(cpus),
        "goal": amount(cpus),
        "permit": amount(cpus),
        "held": amount(cpus),
        "sequenceNumber": 12,
        "load": {"busyCPUs": cpus / 2, "load1": 0.25},
        "metricsAgeSeconds": 1.5,
        "informant": "active",
        "tied": False,
        "goalReasons": {"cpu": reason, "memory": reason},
        "reason": reason,
        "reasonCode": None,
        "faults": [],
        "state": "ok",
        "stateReasons": ["as it should be"],
        "counts": {"permits": 3, "resizes": 2, "refusals": {"node-headroom": 1}},
    } | other


def document(*vms: dict[str, Any], node: str = "node-a") -> dict[str, Any]:
    """The whole of `/v1/vms`."""
    return {"node": node, "daemon": "d-1", "vms": list(vms)}


def details(name: str, **other: Any) -> dict[str, Any]:
    return (
        vm(name)
        | {
            "bounds": {"min": amount(1), "max": amount(8)},
            "computeUnit": amount(1),
            "plan": {
                "desired": amount(4),
                "reason": "load",
                "actions": ["AskScheduler"],
                "nextLookSeconds": 0.5,
            },
            "reasons": [
                {
                    "code": "node-headroom",
                    "resource": "cpu",
                    "message": "the node is full",
                    "retryAfterSeconds": 2.0,
                },
                {"code": "pool", "message": "an older agent names no resource"},
            ],
            "journal": [
                {"secondsAgo": 2.5, "event": "Fenced", "fields": {}},
                {"secondsAgo": 0.125, "event": "PermitGranted", "fields": {"number": 12}},
            ],
        }
        | other
    )


def in_short(told: dict[str, Any]) -> VmInShort:
    """One VM of `/v1/vms`, read."""
    return read(told, VmInShort)


def in_full(told: dict[str, Any]) -> VmInFull:
    return read(told, VmInFull)


def heard(*vms: dict[str, Any], node: str = "node-a") -> AgentVms:
    """The whole of `/v1/vms`, read."""
    return read(document(*vms, node=node), AgentVms)


def node_document(**told: Any) -> dict[str, Any]:
    """A node of `/v1/nodes`; what is not said is nothing."""
    amounts = ("reservable", "reserved", "free", "buffer", "pressure", "pressureAccountedFor", "watermark")
    nothing = {name: {"cpu": "0", "memory": "0"} for name in amounts}
    return {"node": "n1", "computeUnit": None, "overFullBecauseOf": []} | nothing | told


def nodes(*told: dict[str, Any]) -> Nodes:
    """The whole of `/v1/nodes`, read."""
    return msgspec.convert({"nodes": [node_document(**each) for each in told]}, Nodes)
