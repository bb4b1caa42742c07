"""The repairs of published defects, in which ours differs from the recorded plugin manager, each with its reason.

A step's results are those of `golden_words.told`. A plugin's entry keeps the time of its socket here (the published one drops that when
it registers), so times are not compared.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Repair:
    """Why ours differs in one case, and the results of ours by step."""

    why: str
    ours: dict[int, list[str]]


REGISTER: Final = (
    "a failed register removes the entry, and is tried again; the published one keeps the entry for ever"
)
NOTIFY: Final = "a plugin that did not take the news is given back by the handler, and tried again; the published one keeps the entry for ever"
URL: Final = "the path of a socket is dialled as it is; the published one parses the path as a URL"
NEVER: Final = "what was never registered is not deregistered"
STORED: Final = "an entry that cannot be stored ends the registration; the published one registers such a plugin in each pass"
DEAD: Final = "a plugin whose server has gone is deregistered and tried again; the published one keeps the entry while the file stays"
NAME: Final = (
    "of two sockets of one name the newer one counts: the end of the older one means nothing to the handler, and the end of the newer "
    "one brings the older one back; the published one deregisters the name with each"
)
PANIC: Final = "whatever a handler raises is its error: told to the plugin, undone and tried again"

NOTHING: Final = "actual: nothing"


def _steps(path: str, uuid: str, endpoint: str = "") -> str:
    """The events up to the call of `register_plugin`."""
    shown = f"csi.example.com {endpoint or path}"
    return f"{path}: begin register, get_info, H1.validate {shown} 1.0.0, actual_add {uuid} H1 {shown}, H1.register {shown} 1.0.0"


def registered(path: str, uuid: str) -> str:
    return f"{_steps(path, uuid)}, notify True '', end register"


def refused(path: str, uuid: str, error: str, *, endpoint: str = "", told: str = "") -> str:
    """A registration whose handler fails to register. `told` is what became of telling the plugin, where that failed."""
    text = f"RegisterPlugin error -- plugin registration failed with err: {error}"
    return f"{_steps(path, uuid, endpoint)}, actual_remove, notify False '{text}', end register failed ({text}{told})"


def given_back(uuid: str, status: str, *, is_heard: bool = True) -> str:
    """A registration of a.sock of which the plugin does not take the news."""
    notify = "notify True '', " if is_heard else ""
    text = f"RegisterPlugin error -- failed to send registration status at socket $DIR/a.sock, err: : rpc error: {status}"
    undone = "actual_remove, H1.deregister csi.example.com a.sock"
    return f"{_steps('a.sock', uuid)}, {notify}{undone}, end register failed ({text})"


def known(path: str, uuid: str) -> str:
    """An actual world with one plugin."""
    return f"actual: {path}={uuid} H1 csi.example.com {path}"


REPAIRS: Final = {
    "loop-05": Repair(
        NAME,
        {
            9: [
                "a.sock: begin unregister, actual_remove, end unregister",
                known("b.sock", "U2"),
                "desired: b.sock=U2",
            ]
        },
    ),
    "loop-06": Repair(
        DEAD,
        {
            12: [
                "b.sock: begin unregister, actual_remove, H2.deregister example.com/gpu ep.sock, end unregister failed (the plugin's server has gone, its socket is still there)",
                NOTHING,
                "desired: b.sock=U3",
            ],
            14: [NOTHING, "desired: nothing"],
        },
    ),
    "manager-03": Repair(DEAD, {5: ["a.sock: H1.deregister csi.example.com a.sock"]}),
    "manager-06": Repair(NAME, {7: []}),
    "operation-20": Repair(
        REGISTER,
        {2: [refused("a.sock", "u-1", "no space", endpoint="csi/ep.sock"), NOTHING, "desired: nothing"]},
    ),
    "operation-21": Repair(REGISTER, {2: [refused("a.sock", "u-1", ""), NOTHING, "desired: nothing"]}),
    "operation-22": Repair(
        REGISTER,
        {
            2: [
                refused("a.sock", "u-1", "no space", told=": rpc error: code = Internal desc = broken"),
                NOTHING,
                "desired: nothing",
            ]
        },
    ),
    "operation-23": Repair(
        NOTIFY, {2: [given_back("u-1", "code = Unknown desc = cannot take it"), NOTHING, "desired: nothing"]}
    ),
    "operation-33": Repair(
        NOTIFY,
        {
            2: [
                given_back("u-1", "code = DeadlineExceeded desc = context deadline exceeded"),
                NOTHING,
                "desired: nothing",
            ]
        },
    ),
    "operation-35": Repair(
        STORED,
        {
            3: [
                "a.sock: begin register, get_info, H1.validate csi.example.com a.sock 1.0.0, actual_add u-1 H1 csi.example.com a.sock failed (disk full), end register failed (disk full)",
                NOTHING,
                "desired: nothing",
            ]
        },
    ),
    "operation-46": Repair(
        URL, {2: [registered("a#b.sock", "u-1"), known("a#b.sock", "u-1"), "desired: nothing"]}
    ),
    "operation-48": Repair(
        URL, {2: [registered("a%41.sock", "u-1"), known("a%41.sock", "u-1"), "desired: nothing"]}
    ),
    "operation-52": Repair(
        NEVER, {1: ["zz.sock: begin unregister, actual_remove, end unregister", NOTHING, "desired: nothing"]}
    ),
    "reconcile-16": Repair(
        DEAD,
        {
            6: ["unregister a.sock: started"],
            7: [
                "a.sock: begin unregister, actual_remove, H1.deregister csi.example.com a.sock, end unregister failed (the plugin's server has gone, its socket is still there)",
                NOTHING,
                "desired: a.sock=U1",
            ],
            8: ["register a.sock: backoff"],
            9: [NOTHING, "desired: a.sock=U1"],
        },
    ),
    "reconcile-20": Repair(
        NAME,
        {
            11: [
                "a.sock: actual_remove",
                "b.sock: begin unregister, actual_remove, H1.deregister csi.example.com b.sock, end unregister",
                NOTHING,
                "desired: a.sock=U1",
            ],
            12: ["register a.sock: started"],
            13: [registered("a.sock", "U1"), known("a.sock", "U1"), "desired: a.sock=U1"],
        },
    ),
    "reconcile-22": Repair(
        NAME,
        {
            11: [
                "a.sock: begin unregister, actual_remove, end unregister",
                "actual: b.sock=U2 H1 n /e/one",
                "desired: b.sock=U2",
            ]
        },
    ),
    "reconcile-30": Repair(
        REGISTER,
        {
            4: [refused("a.sock", "U1", "no space"), NOTHING, "desired: a.sock=U1"],
            7: ["register a.sock: started"],
            8: [registered("a.sock", "U1"), known("a.sock", "U1"), "desired: a.sock=U1"],
        },
    ),
    "reconcile-31": Repair(
        REGISTER,
        {
            4: [refused("a.sock", "U1", "no space"), NOTHING, "desired: a.sock=U1"],
            8: ["register a.sock: started"],
            9: [registered("a.sock", "U2"), known("a.sock", "U2"), "desired: a.sock=U2"],
            10: [],
            11: [known("a.sock", "U2"), "desired: a.sock=U2"],
        },
    ),
    "reconcile-32": Repair(
        REGISTER,
        {
            4: [refused("a.sock", "U1", "no space"), NOTHING, "desired: a.sock=U1"],
            7: ["register a.sock: backoff"],
            8: [NOTHING, "desired: a.sock=U2"],
            9: ["register a.sock: backoff"],
            10: [NOTHING, "desired: a.sock=U2"],
            12: ["register a.sock: started"],
            13: [registered("a.sock", "U2"), known("a.sock", "U2"), "desired: a.sock=U2"],
            14: [],
            15: [known("a.sock", "U2"), "desired: a.sock=U2"],
        },
    ),
    "reconcile-33": Repair(
        REGISTER,
        {
            4: [refused("a.sock", "U1", "no space"), NOTHING, "desired: a.sock=U1"],
            6: [],
            7: [NOTHING, "desired: nothing"],
            9: [],
            10: [NOTHING, "desired: nothing"],
        },
    ),
    "reconcile-35": Repair(
        STORED,
        {
            5: [
                "a.sock: begin register, get_info, H1.validate csi.example.com a.sock 1.0.0, actual_add U1 H1 csi.example.com a.sock failed (disk full), end register failed (disk full)",
                NOTHING,
                "desired: a.sock=U1",
            ],
            6: ["register a.sock: backoff"],
            7: [NOTHING, "desired: a.sock=U1"],
            8: ["register a.sock: backoff"],
            9: [NOTHING, "desired: a.sock=U1"],
            11: ["register a.sock: backoff"],
            12: [NOTHING, "desired: a.sock=U1"],
            13: ["register a.sock: backoff"],
            14: [NOTHING, "desired: a.sock=U1"],
        },
    ),
    "reconcile-36": Repair(
        NOTIFY,
        {
            4: [given_back("U1", "code = Unknown desc = cannot take it"), NOTHING, "desired: a.sock=U1"],
            5: ["register a.sock: backoff"],
            6: [NOTHING, "desired: a.sock=U1"],
            8: ["register a.sock: started"],
            9: [given_back("U1", "code = Unknown desc = cannot take it"), NOTHING, "desired: a.sock=U1"],
        },
    ),
    "reconcile-38": Repair(
        PANIC,
        {
            4: [refused("a.sock", "U1", "oops"), NOTHING, "desired: a.sock=U1"],
            5: ["register a.sock: backoff"],
            6: [NOTHING, "desired: a.sock=U1"],
            8: ["register a.sock: started"],
            9: [refused("a.sock", "U1", "oops"), NOTHING, "desired: a.sock=U1"],
        },
    ),
    "reconcile-40": Repair(
        PANIC,
        {
            7: [
                "a.sock: begin unregister, actual_remove, H1.deregister csi.example.com a.sock, end unregister failed (the handler did not end the registration well: oops)",
                NOTHING,
                "desired: nothing",
            ]
        },
    ),
    "reconcile-45": Repair(
        NEVER, {3: ["a.sock: begin unregister, actual_remove, end unregister", NOTHING, "desired: nothing"]}
    ),
    "reconcile-53": Repair(
        NOTIFY,
        {
            4: [
                given_back("U1", "code = Unavailable desc = $TRANSPORT", is_heard=False),
                NOTHING,
                "desired: a.sock=U1",
            ],
            5: ["register a.sock: backoff"],
            6: [NOTHING, "desired: a.sock=U1"],
        },
    ),
}
