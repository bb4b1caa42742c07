"""The access file: `parley-scheduler --access FILE`. Who may call is read again when the file changes; ports and certificates' paths are not."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from hosting.access import GRANTED, AccessScope
from hosting.settings import PathSetting, Settings
from hosting.tls import TlsFiles

NODE: Final = "{node}"
"""In a pattern of a certificate's name it stands for the name of the agent's node."""
_ACCOUNT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _scope(value: object) -> AccessScope:
    if value in {each.value for each in GRANTED}:
        return AccessScope(str(value))
    raise ValueError(f"must be one of {', '.join(sorted(GRANTED))}")


def _network(value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        if not isinstance(value, str):
            raise ValueError
        return ipaddress.ip_network(value)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        raise ValueError(f"must be an address or a range such as 10.0.0.0/8 or fd00::/8{why}") from None


def _account(value: str) -> str:
    if not _ACCOUNT.fullmatch(value):
        raise ValueError("must be NAMESPACE/NAME of a service account, such as parley-system/parley-agent")
    return value


def _san(value: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value or value.count(NODE) > 1:
        raise ValueError(
            f"must be a URI or a DNS name of a certificate, such as spiffe://parley/agent/{NODE}, with {NODE} once at most"
        )
    return value


Right = Annotated[AccessScope, BeforeValidator(_scope)]
Network = Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, BeforeValidator(_network)]
Glob = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9.*?\[\]!-]+$")]
Rights = Annotated[list[Right], Field(min_length=1, max_length=len(GRANTED))]
Networks = Annotated[list[Network], Field(min_length=1, max_length=256)]
Globs = Annotated[list[Glob], Field(min_length=1, max_length=256)]


class PortTlsSettings(Settings):
    """Files in PEM, read again when they change. They are used by the port of agents and by that of kube-scheduler."""

    certificate: PathSetting
    """The scheduler's certificate with its chain."""
    key: PathSetting
    """Its key, without a password."""
    client_ca: PathSetting | None = None
    """The authorities whose certificates say who a caller is."""

    def files(self) -> TlsFiles:
        return TlsFiles(self.certificate, self.key, client_ca=self.client_ca)


class TokenSettings(Settings):
    """How bearer tokens of service accounts are checked, by a TokenReview of the API server."""

    audience: Annotated[str, Field(min_length=1, max_length=253)] = "parley-scheduler"
    """A token counts only if it was issued for this audience, so that a token for the API server opens nothing here, nor the other way round."""


_KINDS: Final = ("certificate", "service_account", "token_file", "addresses")


class CallerSettings(Settings):
    """A caller, known by one of `certificate`, `serviceAccount`, `tokenFile` and `addresses`, and its rights."""

    certificate: Annotated[str, Field(max_length=512), AfterValidator(_san)] | None = None
    """A SAN (URI or DNS name) of its certificate. `{node}` stands for the node of an agent."""
    service_account: Annotated[str, AfterValidator(_account)] | None = None
    """Its service account on Kubernetes; the node of an agent is that of the pod that its token was issued for."""
    token_file: PathSetting | None = None
    """A file with the token that it shows; it is read again."""
    addresses: Networks | None = None
    """The addresses that it calls from, without a credential."""
    scopes: Rights
    """Its rights."""
    nodes: Globs | None = None
    """The nodes for whose VMs it may ask, if it is not an agent that shows its node: names or globs."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """It is known by one thing, and one that asks for permits has nodes."""
        if any(kind not in found for kind in _KINDS) or "scopes" not in found or "nodes" not in found:
            return
        given = [kind for kind in _KINDS if found[kind] is not None]
        if len(given) != 1:
            yield (
                "",
                "needs one of certificate, serviceAccount, tokenFile and addresses, and one of them only",
            )
            return
        is_agent = AccessScope.PERMITS in found["scopes"]
        shows_node = given == ["service_account"] or NODE in (found["certificate"] or "")
        if is_agent and not shows_node and found["nodes"] is None:
            yield "nodes", f"is needed with the right permits, if a caller does not show its node (by {NODE})"
        if found["nodes"] is not None and not is_agent:
            yield "nodes", "goes with the right permits only"
        if found["nodes"] is not None and NODE in (found["certificate"] or ""):
            yield "nodes", f"must be left out where {NODE} names the node"


class PublishedPeer(Settings):
    """Published agents, which show no identity: by their addresses, and the nodes for whose VMs they may ask."""

    addresses: Networks
    """The addresses that they call from: addresses or ranges."""
    nodes: Globs
    """The nodes for whose VMs they may ask: names or globs."""


class PublishedSettings(Settings):
    """A port in the clear, for published agents alone: they know neither TLS nor tokens. It takes requests for permits and nothing else."""

    port: Annotated[int, Field(ge=0, le=65535)]
    """The port; 0: any free one."""
    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    """The address to listen on."""
    peers: Annotated[list[PublishedPeer], Field(min_length=1, max_length=64)]
    """Who calls there."""


class AccessSettings(Settings):
    """The whole file."""

    tls: PortTlsSettings | None = None
    """Without it the ports speak HTTP in the clear, which beyond this machine `--plain-http` must allow."""
    tokens: TokenSettings = TokenSettings()
    callers: Annotated[list[CallerSettings], Field(max_length=1024)] = Field(default_factory=list)
    """Who may call; nobody else is let in, on this machine either. The health pages are open to everybody."""
    published: PublishedSettings | None = None
    """Published agents; none are served by default."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Certificates need an authority that is believed."""
        if "tls" not in found or "callers" not in found:
            return
        tls = found["tls"]
        if tls is not None and tls.client_ca is not None:
            return
        for index, caller in enumerate(found["callers"]):
            if caller.certificate is not None:
                yield f"callers.{index}.certificate", "needs tls.clientCa, the authority of such certificates"

    @property
    def needs_reviews(self) -> bool:
        """Whether tokens of service accounts count, which only the API server can check."""
        return any(each.service_account is not None for each in self.callers)
