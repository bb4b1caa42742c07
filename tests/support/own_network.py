"""A network of this process's own: addresses that are none of loopback, and that nobody else on the machine sees.

Programs that run meanwhile, children included, reach nothing but each other. API servers refuse addresses of loopback as endpoints.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

NETWORK: Final = "198.19"
"""Kept for benchmarks of networks (RFC 2544)."""
_CLONE_NEWNET: Final = 0x40000000
_OWN: Final = Path("/proc/thread-self/ns/net")


@contextmanager
def own_network() -> Iterator[str]:
    """A network namespace for the length of the block, in which all of NETWORK.0.0/16 is this machine's own.

    It holds for this thread, and for the threads and processes that it starts. Skips the test if it may not be made.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for a network of its own")
    libc = ctypes.CDLL(None, use_errno=True)
    with _OWN.open("rb") as before:
        if libc.unshare(_CLONE_NEWNET) != 0:
            pytest.skip(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            subprocess.run(["ip", "route", "add", "local", f"{NETWORK}.0.0/16", "dev", "lo"], check=True)
            yield NETWORK
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
