"""Addresses: how they are written in URLs, and which address a program advertises to its peers (`advertise`).

An address to listen on may be a wildcard (`0.0.0.0`, `::`): to the program it means all of its addresses, and to a peer the
peer itself. The advertised address is therefore a setting of its own, unless peers can call the one in `--host`.
"""

import contextlib
import functools
import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlsplit

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Interfaces: TypeAlias = Callable[[], dict[str, list[str]]]
"""The addresses of each network interface of this machine."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_RULE: Final = "must be an address, a host name with a dot, or the name of a network interface, with :PORT where that differs"


UNIX: Final = "unix:"
"""Begins the address of a Unix socket, such as `unix:/run/parley/agent.sock`. In a URL a colon and the path of the page follow."""
MAX_SOCKET_BYTES: Final = 107
"""Bytes of a path that the kernel takes for a socket."""


class AddressError(ValueError):
    """An address cannot be used. The message says which, why, and what could be used."""


@functools.lru_cache(maxsize=1024)
def is_loopback(peer: str) -> bool:
    """Whether `peer`, such as `Request.peer`, is an address of this machine; false for a host name."""
    address = _parsed(peer)
    return address is not None and address.is_loopback


def is_own(host: str) -> bool:
    """Whether a program that calls `host` calls its own machine: a loopback address, or `localhost`."""
    return host == "localhost" or is_loopback(host)


def is_url(value: str, schemes: tuple[str, ...]) -> bool:
    """Whether `value` is a URL with a host and one of these schemes, and without credentials: URLs are logged."""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:  # a port beyond all ports, a bracket without its other one
        return False
    is_plain = value.isascii() and value.isprintable() and not any(part.isspace() for part in value)
    return (
        parts.scheme in schemes
        and bool(parts.hostname)
        and port != 0
        and is_plain
        and "@" not in parts.netloc
    )


def checked_socket(path: str) -> str:
    """The path of a Unix socket. Raises `AddressError`."""
    if not path.startswith("/") or ":" in path or len(path.encode()) > MAX_SOCKET_BYTES:
        raise AddressError(
            f"must be the absolute path of a socket, without a colon and of at most {MAX_SOCKET_BYTES} bytes"
        )
    return path


def bracketed(host: str) -> str:
    """`host` as it stands in URLs and before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def endpoint(host: str, port: int) -> str:
    """`host` and `port` as one text, such as `10.0.0.7:10300` or `[::1]:10300`."""
    return f"{bracketed(host)}:{port}"


def is_wildcard(host: str) -> bool:
    """Whether listening on `host` means every address of the machine; false for a name that cannot be resolved."""
    address = _parsed(host)
    if address is not None:
        return address.is_unspecified
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    address = _parsed(str(found[0][4][0]))
    return address is not None and address.is_unspecified


@dataclass(frozen=True, slots=True)
class Advertised:
    """The address for peers: a host (an address without brackets, or a name), and a port if that differs."""

    host: str
    port: int | None = None

    def endpoint(self, listening_port: int) -> str:
        """Host and port as one text; `listening_port` if the setting names no port."""
        return endpoint(self.host, self.port or listening_port)


def _parsed(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)  # how a socket for both families shows IPv4
    return mapped if mapped is not None else address


def _split(text: str) -> tuple[str, int | None]:
    """Host and port of a setting. Raises `AddressError`."""
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        if not closing or ":" not in host or _parsed(host) is None:
            raise AddressError(f"{_RULE}; only an IPv6 address stands in brackets, such as [fd00::7]")
    elif _parsed(text) is not None:
        host, rest = text, ""
    else:
        host, colon, port = text.partition(":")
        rest = colon + port
    if not rest:
        return host, None
    digits = rest[1:]
    if rest[0] != ":" or not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits[:9]) <= 65535:
        raise AddressError(
            f"{_RULE}; a port is a number from 1 to 65535, and IPv6 stands in brackets before it"
        )
    return host, int(digits)


def checked_advertise(text: str) -> str:
    """The setting `advertise` as it is written. Raises `AddressError` for an address that peers cannot call."""
    host, _ = _split(text)
    address = _parsed(host)
    if address is None:
        if not _NAME.fullmatch(host) or re.fullmatch(r"[0-9.]+|0[xX][0-9a-fA-F]+", host):
            raise AddressError(_RULE)
        return text
    _checked(address)
    return text


def _checked(address: _Address) -> _Address:
    """The address. Raises `AddressError` if peers cannot call it."""
    if address.is_unspecified:
        raise AddressError(
            f"must not be a wildcard: {address} is the caller itself to everybody who calls it"
        )
    if address.is_multicast:
        raise AddressError(f"must be an address of one machine, and {address} is one of a group")
    if isinstance(address, ipaddress.IPv6Address) and (address.is_link_local or address.scope_id):
        raise AddressError(f"must not be an address of one link: {address} means nothing on another machine")
    return address


def interfaces_of_this_machine() -> dict[str, list[str]]:
    import psutil  # noqa: PLC0415 - only who names an interface needs it

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address for each in found if each.family in families]
        for name, found in psutil.net_if_addrs().items()
    }


def advertised(
    setting: str | None, listening: str, interfaces: Interfaces = interfaces_of_this_machine
) -> Advertised:
    """The address that a program which listens on `listening` advertises. Raises `AddressError`.

    Without a setting that is `listening`, which must not be a wildcard then. An interface stands for its first
    address of the family that is listened on (for `::`, which takes both, of IPv4 before IPv6).
    """
    if setting is None:
        if is_wildcard(listening):
            raise AddressError(
                f"--host {listening} is a wildcard, which others cannot call: it means themselves to them. Say with "
                "`advertise` (--advertise, or in the settings file) which address or network interface of this machine "
                "they shall call, such as 10.0.0.7, [fd00::7] or eth0"
            )
        return Advertised(listening.removeprefix("[").removesuffix("]"))
    host, port = _split(checked_advertise(setting))
    if _parsed(host) is not None or "." in host:
        return Advertised(host, port)
    return Advertised(_address_of(host, listening, interfaces()), port)


def _address_of(interface: str, listening: str, known: dict[str, list[str]]) -> str:
    """The address of an interface that peers can call. Raises `AddressError`."""
    if interface not in known:
        there = ", ".join(sorted(known)) or "none"
        raise AddressError(f"advertise: there is no network interface {interface!r} here; there are: {there}")
    usable: list[_Address] = []
    for text in known[interface]:
        with contextlib.suppress(AddressError):
            if (address := _parsed(text)) is not None:
                usable.append(_checked(address))
    own = _parsed(listening)
    families: Sequence[int] = (own.version,) if own is not None else (4, 6)
    if own is not None and own.version == 6 and own.is_unspecified:
        families = (4, 6)
    for family in families:
        for address in usable:
            if address.version == family:
                return str(address)
    wanted = " or ".join(f"IPv{family}" for family in families)
    raise AddressError(
        f"advertise: the network interface {interface!r} has no {wanted} address that others can call"
    )
