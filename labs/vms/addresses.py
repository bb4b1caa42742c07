"""An address of this machine's loopback for each guest, so that all guests have the same ports and nobody translates any."""

import random
import socket
from typing import Final

from labs.vms.machine import INFORMANT_PORT, WORKLOAD_PORT

_TRIES: Final = 100


class NoAddressError(Exception):
    """No loopback address was free. The text is for a person."""


def free_address(rng: random.Random) -> str:
    """An address in 127.16.0.0 to 127.254.255.255 whose ports nobody listens on just now. Raises `NoAddressError`.

    Another guest may take it before QEMU does; the starter of QEMU tries again then.
    """
    for _ in range(_TRIES):
        address = f"127.{rng.randrange(16, 255)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"
        if all(_is_free(address, port) for port in (INFORMANT_PORT, WORKLOAD_PORT)):
            return address
    raise NoAddressError(
        f"none of {_TRIES} addresses of 127.0.0.0/8 has its ports {INFORMANT_PORT} and {WORKLOAD_PORT} free;"
        " does something listen on 0.0.0.0 there?"
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((address, port))
        except OSError:
            return False
    return True
