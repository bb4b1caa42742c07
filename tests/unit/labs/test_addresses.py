"""A loopback address for each guest."""

import random
import socket

import pytest

from labs.vms import addresses
from labs.vms.addresses import NoAddressError, free_address


def test_an_address_with_a_port_in_use_is_passed_over() -> None:
    taken = free_address(random.Random(7))
    with socket.socket() as listening:
        listening.bind((taken, 10400))
        listening.listen()
        other = free_address(random.Random(7))  # which would draw the same one first
    assert other != taken
    for address in (taken, other):
        first, second, *_ = (int(part) for part in address.split("."))
        assert first == 127
        assert 16 <= second <= 254


def test_where_none_is_free_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_is_free", lambda *_: False)
    with pytest.raises(NoAddressError, match="10301 and 10400"):
        free_address(random.Random(1))
