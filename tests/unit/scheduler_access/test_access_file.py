"""The access file: its faults, and the callers that it makes."""

from pathlib import Path

import pytest

from hosting.access import AccessScope, Caller
from hosting.settings import SettingsError, parse
from scheduler.access.callers import Callers, TokenIdentity
from scheduler.access.settings import AccessSettings
from scheduler.permits.core.rules import is_listed
from tests.tidy.repository import ROOT

TLS = "tls: {certificate: a, key: b, clientCa: c}\n"


def read(text: str) -> AccessSettings:
    return parse(Path("access.yaml"), text.encode(), AccessSettings)


def callers(text: str) -> Callers:
    return Callers(read(TLS + text).callers)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("callers: [{scopes: [permits]}]", ["needs one of certificate, serviceAccount, tokenFile"]),
        (
            "callers: [{certificate: x, addresses: [10.0.0.0/8], scopes: [pages]}]",
            ["needs one of certificate, serviceAccount, tokenFile"],
        ),
        (
            "callers: [{addresses: [10.0.0.1/8], scopes: [pages]}]",
            ["addresses[0]: must be an address or a range"],
        ),
        (
            "callers: [{addresses: [10.0.0.0/8], scopes: [permits]}]",
            ["nodes: is needed with the right permits"],
        ),
        (
            "callers: [{addresses: [10.0.0.0/8], scopes: [root, open]}]",
            ["scopes[0]: must be one of", "scopes[1]"],
        ),
        (
            "callers: [{serviceAccount: agent, scopes: [pages]}]",
            ["must be NAMESPACE/NAME of a service account"],
        ),
        (TLS + 'callers: [{certificate: "{node}/{node}", scopes: [permits]}]', ["{node} once at most"]),
        (
            TLS + "callers: [{certificate: x, scopes: [pages], nodes: [a]}]",
            ["goes with the right permits only"],
        ),
        (
            TLS + 'callers: [{certificate: "x/{node}", scopes: [permits], nodes: [a]}]',
            ["must be left out where {node} names the node"],
        ),
        (TLS + "callers: [{certificate: x, scopes: [permits]}]", ["nodes: is needed with the right permits"]),
        ("tls: {certificate: a}", ["tls.key: is required"]),
        ("published: {port: 1, peers: []}", ["published.peers"]),
    ],
)
def test_all_faults_are_told_at_once(text: str, faults: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    for fault in faults:
        assert fault in str(caught.value)


def test_the_example_is_an_access_file() -> None:
    text = (ROOT / "examples/access.yaml").read_text()
    assert len(read(text).callers) == 4
    opened = "\n".join(
        line.replace("# ", "", 1) if "  # -" in line or "  #   " in line else line
        for line in text.splitlines()
    )
    assert len(read(opened).callers) == 8


AGENTS = """
callers:
- {certificate: "spiffe://parley/agent/{node}", scopes: [permits]}
- {certificate: "{node}.agents.parley", scopes: [permits]}
- {certificate: robot.parley, scopes: [permits, pages], nodes: ["ci-*"]}
"""


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        (("spiffe://parley/agent/n1",), ("n1",)),
        (("node-7.example.org.agents.parley",), ("node-7.example.org",)),
        (("spiffe://parley/agent/n1", "n2.agents.parley"), ("n1", "n2")),
        (("robot.parley",), ("ci-*",)),
        (("spiffe://parley/agent/",), None),
        (("spiffe://parley/agent/n1/x",), None),
        (("spiffe://parley/agent/*",), None),
        (("spiffe://parley/agent/N1",), None),
        (("spiffe://parley/agent/n1\n",), None),
        (("spiffe://parley/agent/n\u0661",), None),
        (("xspiffe://parley/agent/n1",), None),
        ((".agents.parley",), None),
        (("nXagentsXparley",), None),
        ((), None),
    ],
)
def test_a_certificate_names_the_node_of_an_agent(
    names: tuple[str, ...], nodes: tuple[str, ...] | None
) -> None:
    found = callers(AGENTS).by_certificate(names)
    assert (found.nodes if found is not None else None) == nodes


def test_a_node_that_a_credential_names_is_no_glob() -> None:
    """A token's node is the API server's word, and still only a name that can be a node's."""
    found = callers("callers: [{serviceAccount: p/agent, scopes: [permits]}]").by_token(
        TokenIdentity("p", "agent", "n1")
    )
    assert found is not None
    assert found.nodes == ("n1",)
    assert not is_listed(found.nodes, "n10")


@pytest.mark.parametrize(
    ("peer", "scopes"),
    [
        ("10.1.2.3", {"metrics", "pages"}),
        ("10.9.9.9", {"metrics"}),
        ("::ffff:10.9.9.9", {"metrics"}),
        ("fd00::7", {"pages"}),
        ("11.0.0.1", None),
        ("", None),
        ("localhost", None),
    ],
)
def test_an_address_has_the_rights_of_every_entry_that_holds_it(peer: str, scopes: set[str] | None) -> None:
    known = callers(
        "callers: [{addresses: [10.0.0.0/8], scopes: [metrics]},"
        " {addresses: [10.1.2.3, 'fd00::/16'], scopes: [pages]}]"
    )
    found = known.by_address(peer)
    assert (set(found.scopes) if found is not None else None) == scopes


def test_no_right_follows_from_none() -> None:
    nobody = Caller("x", frozenset())
    assert nobody.may(AccessScope.OPEN)
    assert not any(nobody.may(scope) for scope in AccessScope if scope is not AccessScope.OPEN)
