"""Addresses: how they are written, and which one others are told to call."""

import ipaddress
import re
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from hosting.addresses import (
    AddressError,
    advertised,
    interfaces_of_this_machine,
    is_loopback,
    is_own,
    is_wildcard,
)
from hosting.options import Advertise

HERE = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["fe80::1%eth0", "10.0.0.7", "fd00::7"],
    "six": ["fe80::2%six", "fd00::8"],
    "bare": ["02:00:00:00:00:01"],
}


def told(setting: str | None, listening: str, port: int = 10300) -> str:
    """The address that others are told on a machine with the interfaces `HERE`."""
    return advertised(setting, listening, lambda: HERE).endpoint(port)


@pytest.mark.parametrize(
    ("setting", "listening", "expected"),
    [
        (None, "127.0.0.1", "127.0.0.1:10300"),
        (None, "::1", "[::1]:10300"),
        (None, "node-7.example", "node-7.example:10300"),
        ("10.0.0.7", "0.0.0.0", "10.0.0.7:10300"),
        ("10.0.0.7:31000", "0.0.0.0", "10.0.0.7:31000"),
        ("fd00::7", "::", "[fd00::7]:10300"),
        ("[fd00::7]", "::", "[fd00::7]:10300"),
        ("[fd00::7]:31000", "::", "[fd00::7]:31000"),
        ("::ffff:10.0.0.7", "::", "[::ffff:10.0.0.7]:10300"),
        ("node-7.example", "0.0.0.0", "node-7.example:10300"),
        ("eth0", "0.0.0.0", "10.0.0.7:10300"),
        ("eth0:31000", "0.0.0.0", "10.0.0.7:31000"),
        ("eth0", "::", "10.0.0.7:10300"),  # such a socket takes both families
        ("eth0", "fd00::7", "[fd00::7]:10300"),
        ("six", "::", "[fd00::8]:10300"),  # an address of one link is none for another machine
        ("lo", "0.0.0.0", "127.0.0.1:10300"),
    ],
)
def test_others_are_told_an_address_that_they_can_call(
    setting: str | None, listening: str, expected: str
) -> None:
    assert told(setting, listening) == expected


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "0", "", "::0", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0"])
def test_a_wildcard_alone_is_refused_with_the_advice(listening: str) -> None:
    with pytest.raises(AddressError, match=r"is a wildcard.*`advertise`.*10\.0\.0\.7.*eth0"):
        told(None, listening)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("0.0.0.0", "wildcard"),
        ("::", "wildcard"),
        ("[::]:10300", "wildcard"),
        ("224.0.0.1", "group"),
        ("fe80::1", "one link"),
        ("fe80::1%eth0", "one link"),
        ("10.0.0.7:0", "1 to 65535"),
        ("10.0.0.7:99999", "1 to 65535"),
        ("10.0.0.7:", "1 to 65535"),
        ("10.0.0.7:http", "1 to 65535"),
        ("[fd00::7]10300", "1 to 65535"),
        ("fd00::7:10300:99999", "1 to 65535"),
        ("[10.0.0.7]", "brackets"),
        ("[fd00::7", "brackets"),
        ("10.0.0", "must be an address"),
        ("0x7f000001", "must be an address"),
        ("http://10.0.0.7", "1 to 65535"),
        ("eth 0", "must be an address"),
        ("eth0\x1b", "must be an address"),
        ("eth1", "no network interface 'eth1' here; there are: bare, eth0, lo, six"),
        ("six", "no IPv4 address"),
        ("bare", "no IPv4 address"),
    ],
)
def test_what_others_cannot_call_is_refused_by_its_rule(setting: str, words: str) -> None:
    with pytest.raises(AddressError, match=re.escape(words)):
        told(setting, "0.0.0.0")


def test_the_command_line_takes_the_same_and_no_control_characters() -> None:
    option = Advertise()
    assert option.convert("[fd00::7]:31000", None, None) == "[fd00::7]:31000"
    with pytest.raises(Exception, match="wildcard"):
        option.convert("0.0.0.0", None, None)


@given(st.ip_addresses(v=6))
@example(ipaddress.IPv6Address("::ffff:224.0.0.1"))
@example(ipaddress.IPv6Address("::ffff:10.0.0.7"))
def test_every_ipv6_address_that_is_told_can_be_called(address: ipaddress.IPv6Address) -> None:
    """The other side puts `http://` before what it was told, and a path behind."""
    try:
        found = told(str(address), "::")
    except AddressError:
        meant = address.ipv4_mapped or address
        assert meant.is_unspecified or meant.is_multicast or address.is_link_local
        return
    url = URL(f"http://{found}/agents/x/id")
    assert url.host is not None
    assert (ipaddress.ip_address(url.host), url.port) == (address, 10300)


@given(st.text(max_size=40))
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        found = told(text, "0.0.0.0")
    except AddressError:
        return
    assert URL(f"http://{found}/").host


def test_the_machine_names_its_interfaces() -> None:
    loopback = [name for name, found in interfaces_of_this_machine().items() if "127.0.0.1" in found]
    assert loopback
    assert advertised(loopback[0], "0.0.0.0").endpoint(1) == "127.0.0.1:1"


def test_loopback_is_seen_in_every_form() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.7", "::", "fd00::7", "localhost", "node-7.example", "")))
    assert (is_own("localhost"), is_own("::1"), is_own("node-7.example")) == (True, True, False)


def test_a_name_that_cannot_be_resolved_is_no_wildcard(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not is_wildcard("node-7.example")
