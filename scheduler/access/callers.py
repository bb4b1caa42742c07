"""From an identity that was verified to a caller with its rights. Pure."""

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hosting.access import AccessScope, Caller
from scheduler.access.settings import NODE, CallerSettings, Network

_NODE_NAME: Final = r"(?P<node>[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)"
_CACHED: Final = 20_480
"""Certificates and addresses whose callers are remembered; no more agents can be connected."""


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The identity that a TokenReview has told: a service account, and the node of the pod that the token was issued for (empty: none)."""

    namespace: str
    name: str
    node: str = ""


class Callers:
    """The callers of one state of the access file."""

    def __init__(self, entries: Sequence[CallerSettings]) -> None:
        self._certificates = [
            (_pattern(each.certificate), each) for each in entries if each.certificate is not None
        ]
        self._accounts = [each for each in entries if each.service_account is not None]
        self._networks = [(each.addresses, each) for each in entries if each.addresses is not None]
        self.by_certificate = functools.lru_cache(_CACHED)(self._by_certificate)
        self.by_address = functools.lru_cache(_CACHED)(self._by_address)

    @property
    def has_accounts(self) -> bool:
        """Whether a token of a service account can mean anything here."""
        return bool(self._accounts)

    def _by_certificate(self, names: tuple[str, ...]) -> Caller | None:
        """The caller with a certificate of these SANs: with the rights of every entry that names one of them."""
        found: list[tuple[CallerSettings, tuple[str, ...]]] = []
        known = ""
        for name in names:
            for pattern, entry in self._certificates:
                if (match := pattern.fullmatch(name)) is None:
                    continue
                known = known or name
                node = match.groupdict().get("node")
                found.append((entry, (node,) if node is not None else tuple(entry.nodes or ())))
        return _caller(known, found, is_identified=True)

    def by_token(self, identity: TokenIdentity) -> Caller | None:
        """The caller with a token of this service account."""
        account = f"{identity.namespace}/{identity.name}"
        own = (identity.node,) if identity.node else ()
        found = [
            (each, tuple(each.nodes) if each.nodes is not None else own)
            for each in self._accounts
            if each.service_account == account
        ]
        name = f"system:serviceaccount:{identity.namespace}:{identity.name}"
        return _caller(f"{name}@{identity.node}" if identity.node else name, found, is_identified=True)

    def _by_address(self, peer: str) -> Caller | None:
        """The caller at this address, which shows no credential."""
        found = [
            (entry, tuple(entry.nodes or ())) for networks, entry in self._networks if within(peer, networks)
        ]
        return _caller(peer, found, is_identified=False)


def by_file(entry: CallerSettings, path: str) -> Caller:
    """The caller that has shown the token of this entry's file."""
    found = _caller(f"token of {path}", [(entry, tuple(entry.nodes or ()))], is_identified=True)
    assert found is not None
    return found


def within(peer: str, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of these networks; IPv4 in the form of IPv6 counts as IPv4."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _caller(
    name: str, found: list[tuple[CallerSettings, tuple[str, ...]]], *, is_identified: bool
) -> Caller | None:
    if not found:
        return None
    scopes = frozenset(scope for entry, _ in found for scope in entry.scopes)
    nodes = {node for entry, own in found if AccessScope.PERMITS in entry.scopes for node in own}
    return Caller(name, scopes, tuple(sorted(nodes)), is_identified)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(re.escape(NODE), _NODE_NAME))
