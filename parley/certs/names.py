"""Who is named how in a certificate, and what is asked for on the command line. Pure."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

AGENT_URI: Final = "spiffe://parley/agent/"
VIEWER: Final = "viewer.parley"
KUBE_SCHEDULER: Final = "kube-scheduler.parley"
_OWN_DOMAIN: Final = ".parley"

MAX_CHARACTERS: Final = 253
"""Of a node's name and of a host's, as in DNS."""
_NODE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

NameKind = Literal["URI", "DNS", "IP"]


@dataclass(frozen=True, slots=True)
class AltName:
    """A subject alternative name."""

    kind: NameKind
    value: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """A certificate that is asked for."""

    folder: str
    """The folder below the authority's where its files lie."""
    title: str
    """The common name, for people; nothing is decided by it."""
    names: tuple[AltName, ...]
    is_server: bool = False
    is_client: bool = False


def host_name(text: str) -> AltName:
    """A host by its address or its name in DNS. Raises `ValueError`."""
    address = text.removeprefix("[").removesuffix("]")
    try:
        return AltName("IP", str(ipaddress.ip_address(address)))
    except ValueError:
        pass
    labels = text.removeprefix("*.").split(".")
    is_number = labels[-1].isdecimal()
    if len(text) > MAX_CHARACTERS or is_number or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            f"{text!r} is neither an address nor a host's name, such as 10.0.0.5 or scheduler.example"
        )
    if text.lower().endswith(_OWN_DOMAIN):
        raise ValueError(f"{text!r}: names below {_OWN_DOMAIN} say who a client is, no host may have one")
    return AltName("DNS", text.lower())


def agent_name(node: str) -> AltName:
    """The identity of a node's agent. Raises `ValueError` for a name that is no segment of a SPIFFE path."""
    if len(node) > MAX_CHARACTERS or not _NODE.fullmatch(node):
        raise ValueError(
            f"{node!r} cannot name a node here: letters, digits, '-', '_' and '.' only, {MAX_CHARACTERS} at most, a letter or digit at both ends"
        )
    return AltName("URI", AGENT_URI + node)


def asked(
    schedulers: Iterable[str],
    agents: Iterable[str],
    agent_ports: Iterable[str],
    *,
    viewer: bool,
    kube_scheduler: bool,
) -> tuple[list[CertificateSpec], list[str]]:
    """The certificates, and the faults of what was given. An agent is `NODE` or `NODE=HOST,HOST`: the hosts are for its own port with TLS."""
    found: list[CertificateSpec] = []
    faults: list[str] = []

    def hosts_of(option: str, texts: Iterable[str]) -> tuple[AltName, ...]:
        hosts: dict[AltName, None] = {}
        for text in texts:
            try:
                hosts[host_name(text)] = None
            except ValueError as error:
                faults.append(f"{option}: {error}")
        return tuple(hosts)

    names = hosts_of("--scheduler", schedulers)
    if names:
        found.append(CertificateSpec("scheduler", "Parley scheduler", names, is_server=True))
    nodes: set[str] = set()
    for text in agents:
        node, equals, listed = text.partition("=")
        if node in nodes:
            faults.append(f"--agent: {node!r} is given twice")
            continue
        nodes.add(node)
        hosts = hosts_of(f"--agent {node}", listed.split(",")) if equals else ()
        try:
            name = agent_name(node)
        except ValueError as error:
            faults.append(f"--agent: {error}")
            continue
        title = f"Parley agent {node}"
        found.append(
            CertificateSpec(f"agent-{node}", title, (name, *hosts), is_server=bool(hosts), is_client=True)
        )
    names = hosts_of("--agent-ports", agent_ports)
    if names:
        # An agent shows it to the scheduler as well, beside its token; it gives no right there.
        found.append(CertificateSpec("agent-ports", "Parley agents", names, is_server=True, is_client=True))
    if viewer:
        found.append(CertificateSpec("viewer", "Parley viewer", (AltName("DNS", VIEWER),), is_client=True))
    if kube_scheduler:
        name = AltName("DNS", KUBE_SCHEDULER)
        found.append(CertificateSpec("kube-scheduler", "kube-scheduler for Parley", (name,), is_client=True))
    return found, faults


def meanings(
    names: Iterable[AltName], *, is_client: bool, is_server: bool, is_authority: bool
) -> Iterator[str]:
    """What a certificate is to Parley, by the names that `parley certs` and deploy/base give."""
    if is_authority:
        yield "an authority: it signs certificates"
        return
    listed = tuple(names)
    known = {AltName("DNS", VIEWER): "a viewer", AltName("DNS", KUBE_SCHEDULER): "kube-scheduler"}
    if is_client:
        for name in listed:
            if name.kind == "URI" and name.value.startswith(AGENT_URI):
                yield f"the agent of node {name.value.removeprefix(AGENT_URI)}"
            elif name in known:
                yield known[name]
    if is_server:
        hosts = [name.value for name in listed if name.kind != "URI"]
        if hosts:
            yield f"a server at {', '.join(hosts)}"


def name_faults(
    names: Iterable[AltName], *, is_client: bool, is_server: bool, is_authority: bool
) -> Iterator[str]:
    """Why Parley, or a strict peer, would not go by the names of a certificate."""
    if is_authority:
        return
    listed = tuple(names)
    if not listed:
        yield "it has no subject alternative name: nobody is known by its common name"
    if not is_client and not is_server:
        yield "it is neither for clients nor for servers (extended key usage)"
    nodes = [name for name in listed if name.kind == "URI" and name.value.startswith(AGENT_URI)]
    if len(nodes) > 1:
        yield "it names several nodes: an agent has one"
    for name in nodes:
        try:
            agent_name(name.value.removeprefix(AGENT_URI))
        except ValueError as error:
            yield str(error)
    if nodes and not is_client:
        yield "it names an agent, and is not for clients (extended key usage)"
