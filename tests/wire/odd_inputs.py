"""Sizes and odd inputs: what a published program makes of each, what ours does, and why where that differs.

`docs/reference/protocol.md` shows these cases as its tables, `test_odd_inputs.py` sends each to a published stand-in and to ours. An outcome
is a status; "closed" is a connection that ends without an answer; a permit or an approval stands behind its 200.
"""

import json
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

AGENT_ID: Final = str(UUID(int=9, version=4))
"""The agent that is registered, and in use."""
OTHER_ID: Final = str(UUID(int=10, version=4))


@dataclass(frozen=True)
class Case:
    """One row. `sent` is a body, or each of those that the row is about.

    `ours` is left out where it is the published outcome; else `why` says why.
    """

    what: str
    request: str
    sent: bytes | tuple[bytes, ...]
    published: str
    ours: str = ""
    why: str = ""
    header: str = ""

    @property
    def here(self) -> str:
        return self.ours or self.published

    @property
    def bodies(self) -> tuple[bytes, ...]:
        return self.sent if isinstance(self.sent, tuple) else (self.sent,)


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _ask(**changes: Any) -> bytes:
    """A request for what the VM has, 2 CPUs and 2 slots; its most is 4, the node has 10, the unit is one of each."""
    content = {
        "protoVersion": 2,
        "pod": {"name": "a", "namespace": "d"},
        "resources": {"vCPUs": 2, "mem": 2},
        "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.5},
    }
    return _json({name: value for name, value in (content | changes).items() if value is not ...})


def _sized(text: str) -> bytes:
    """A request whose `resources` is this text."""
    return _ask(resources=0).replace(b'"resources": 0', b'"resources": ' + text.encode())


def _size(cpus: str, slots: str) -> bytes:
    return _sized(f'{{"vCPUs":{cpus},"mem":{slots}}}')


_FATAL = "any other status is fatal to a published agent"
_ZERO = "a permit of nothing ends the agent's runner, and a status its scaling"
_UNUSED = "no published program sends it"

SCHEDULER: Final = (
    Case("nothing, or a broken body", "POST /", (b"", b"{", _ask()[:-1]), "400"),
    Case("`null`, `{}`", "POST /", (b"null", b"{}"), "400"),
    Case("a byte order mark", "POST /", b"\xef\xbb\xbf" + _ask(), "400"),
    Case("another method", "GET /", _ask(), "400"),
    Case(
        "another path", "POST /any/path", _ask(), "200, 2/2", "404", "published agents use no other; it is a mistake",
    ),
    Case("names in another case", "POST /", _ask().replace(b"vCPUs", b"VCPUs"), "200, 2/2"),
    Case("unknown fields", "POST /", _ask(more=[{"deep": [None]}]), "200, 2/2"),
    Case("bytes after the value", "POST /", _ask() + b"} trailing", "200, 2/2"),
    Case("blanks after the value", "POST /", _ask() + b" \n", "200, 2/2"),
    Case("blanks or bytes after the value, beyond 1,024 bytes", "POST /", (_ask().ljust(5000), _ask().ljust(1024) + b"x" * 99), "200, 2/2"),
    Case("a value that ends beyond 1,024 bytes", "POST /", _ask().rjust(1025), "400"),
    Case(
        "a body over 2,048 bytes with the header `Parley-Agent`", "POST /", _ask().rjust(2049), "400", "413",
        "a caller with the extension is told its mistake", f"Parley-Agent: {AGENT_ID}",
    ),
    Case("a key twice", "POST /", _sized('{"vCPUs":9,"mem":1,"vCPUs":1}'), "200, 1/1"),
    Case("an object twice: both count", "POST /", _sized('{"vCPUs":1,"mem":2},"resources":{"mem":1}'), "200, 1/1"),
    Case(
        "a key twice, first with a value of the wrong kind", "POST /", _sized('{"vCPUs":"x","vCPUs":2,"mem":2}'), "400"
    ),
    Case("`metrics` null or left out", "POST /", (_ask(metrics=...), _ask(metrics=None)), "200, 2/2"),
    Case("`metrics` null in v1.0", "POST /", _ask(protoVersion=1, metrics=None), "400"),
    Case("a load beyond float32, NaN", "POST /", (_ask().replace(b"0.5", b"1e39"), _ask().replace(b"0.5", b"NaN")), "400"),
    Case("version 0, or one that is not spoken", "POST /", (_ask(protoVersion=0), _ask(protoVersion=...), _ask(protoVersion=3)), "400"),
    Case("`pod` null, left out, or unknown", "POST /", (_ask(pod=None), _ask(pod=...), _ask(pod={"name": "b"})), "404"),
    Case("a name that is no UTF-8", "POST /", _ask().replace(b'"a"', b'"a\xff"'), "404"),
    Case("an amount below 0, above 65,535, with a fraction or as a string", "POST /",
         (_size("-1", "2"), _size("65536", "2"), _size("2.0", "2"), _size("2", '"2"')), "400"),
    Case("a request for 0/0", "POST /", _size("0", "0"), "200, 0/0", "closed", _ZERO),
    Case("`resources` null or left out", "POST /", (_ask(resources=None), _ask(resources=...)), "200, 0/0", "closed", _ZERO),
    Case("zero of one resource, `null` for it", "POST /", (_size("1", "0"), _size("1", "null")), "400", "closed", _FATAL),
    Case("zero with a minus", "POST /", _size("-0", "-0"), "400", "closed", f"as for 0/0; {_UNUSED}"),
    Case(
        "no whole, equal multiple of the unit last told", "POST /", _size("2", "3"), "400", "200, 2/3",
        "VMs whose bounds are no multiples could never ask otherwise",
    ),
    Case("more than the VM's most", "POST /", _size("9", "9"), "200, 9/9", "200, 4/4", "the bounds hold"),
)  # fmt: skip


def _spelled(agent_id: str) -> tuple[str, ...]:
    return f"{{{agent_id}}}", f"urn:uuid:{agent_id}", agent_id.replace("-", ""), agent_id.upper()


def _put(cpu: str, memory: str) -> bytes:
    return f'{{"cpu":{cpu},"memory":{memory}}}'.encode()


def _desc(agent_id: str, low: int = 1, high: int = 2) -> bytes:
    """`agentServeAddr` is that of the agent, as the tests know it."""
    desc = {
        "agentID": agent_id,
        "agentServeAddr": "ADDRESS",
        "minProtoVersion": low,
        "maxProtoVersion": high,
    }
    return _json(desc)


_CLEAR = "a size of nothing is a mistake, and the answer says so"

INFORMANT: Final = (
    Case("nothing, or a broken body", "PUT /upscale", (b"", b"{"), "400"),
    Case("`null`, `{}`, or a memory of `null`", "PUT /upscale", (b"null", b"{}", _put('"1"', "null")), "closed", "400", "its handler crashes"),
    Case("the same to `/downscale`", "PUT /downscale", (b"null", b"{}", _put('"1"', "null")), "closed", "400", "its handler crashes"),
    Case(
        "a CPU of `null`", "PUT /upscale", _put("null", '"4Gi"'), "200", "400",
        "both are agreed on here; it looks at the memory alone",
    ),
    Case("a memory of zero", "PUT /upscale", _put('"1"', '"0"'), "200", "400", _CLEAR),
    Case("a memory below zero", "PUT /upscale", _put('"1"', '"-1Gi"'), "200", "400", _CLEAR),
    Case("a CPU of zero", "PUT /upscale", _put('"0"', '"4Gi"'), "200", "400", _CLEAR),
    Case("numbers for quantities", "PUT /upscale", _put("2", "4294967296"), "200"),
    Case("fractions, exponents", "PUT /upscale", (_put('"250m"', '"4.5Gi"'), _put('"1.5"', '"4e9"')), "200"),
    Case("blanks within the quotes", "PUT /upscale", _put('" 1 "', '" 4Gi"'), "200"),
    Case("names in another case, unknown fields, bytes after the value", "PUT /upscale",
         b'{"CPU":"1","Memory":"4Gi","more":1} x', "200"),
    Case("what is no quantity", "PUT /downscale", _put('"1"', '"4GB"'), "400"),
    Case("a body over 4,096 bytes", "PUT /upscale", _put('"1"', '"4Gi"').ljust(4097), "200", "413", _UNUSED),
    Case("a shrink that fits", "PUT /downscale", _put('"1"', '"3Gi"'), "200, Ok"),
    Case("a shrink that does not fit", "PUT /downscale", _put('"1"', '"1Gi"'), "200, not Ok"),
    Case("another method", "POST /downscale", _put('"1"', '"4Gi"'), "405"),
    Case("another path", "GET /health-check", b"", "404"),
    Case("nothing, or a broken body", "POST /register", (b"", b"{"), "400"),
    Case("`null`, `{}`", "POST /register", (b"null", b"{}"), "400"),
    Case("an ID in braces, as a URN, without dashes, in capitals", "POST /register",
         tuple(map(_desc, _spelled(OTHER_ID))), "200"),
    Case("an ID between other signs than braces", "POST /register", _desc(f"<{OTHER_ID}>"), "200", "400", _UNUSED),
    Case("an ID that is empty or malformed", "POST /register", (_desc(""), _desc("9")), "400"),
    Case("an ID of `null`: that of zeros, which the agent does not have", "POST /register",
         _desc("NULL").replace(b'"NULL"', b"null"), "400"),
    Case("an ID that is registered", "POST /register", _desc(AGENT_ID), "409"),
    Case("versions of zero, or the least above the most", "POST /register",
         (_desc(OTHER_ID, 0, 0), _desc(OTHER_ID, 2, 1)), "400"),
    Case("nothing, or a broken body", "DELETE /unregister", (b"", b"{"), "400"),
    Case("an ID that is not registered", "DELETE /unregister", _desc(OTHER_ID), "404"),
)  # fmt: skip


def _order(agent_id: str = AGENT_ID, **more: object) -> bytes:
    return _json({"expectedID": agent_id} | more)


AGENT: Final = (
    Case("`{}`, `null`", "GET /id", (b"{}", b"null"), "200"),
    Case("nothing, or a broken body", "GET /id", (b"", b"{"), "400"),
    Case("a list", "GET /id", b"[]", "400"),
    Case("unknown fields, bytes after the value", "GET /id", b'{"more":1} x', "200"),
    Case("a body over 1,024 bytes", "GET /id", b"{}".ljust(1025), "200", "413", _UNUSED),
    Case("nothing, or a broken body", "POST /suspend", (b"", b"{"), "400"),
    Case("`null`, `{}`: an ID of zeros", "POST /suspend", (b"{}", b"null"), "404"),
    Case("an ID that is empty or malformed", "POST /suspend", (_order(""), _order("9")), "400"),
    Case("the ID of another agent", "POST /suspend", _order(OTHER_ID), "404"),
    Case("an ID in braces, as a URN, without dashes, in capitals", "POST /suspend",
         tuple(map(_order, _spelled(AGENT_ID))), "200"),
    Case("names in another case", "POST /suspend", _order().replace(b"ID", b"id"), "200"),
    Case(
        "an order that is carried out already", "POST /resume", _order(), "400", "200",
        "it starts anew with another ID; the order is met",
    ),
    Case("neither resource, or none named: nothing is wanted", "POST /try-upscale",
         (_order(), _order(cpu=None), _order(cpu=False, memory=False)), "200"),
    Case("a number for true", "POST /try-upscale", _order(cpu=1), "400"),
    Case("another method", "GET /resume", _order(), "405"),
    Case("another path", "POST /migrate", _order(), "404"),
)  # fmt: skip

TABLES: Final = {
    "An agent's request to the scheduler": SCHEDULER,
    "What an agent asks of the informant": INFORMANT,
    "What the informant asks of an agent": AGENT,
}
