"""The identity of a socket's file, by the one call that Python lacks: `statx` tells when a file was made."""

import ctypes
import os
import stat
import struct
from pathlib import Path
from typing import Final

from agent.node.plugins.core.scanning import SocketIdentity

_AT_FDCWD: Final = -100
_AT_NO_AUTOMOUNT: Final = 0x800
_STATX_BTIME: Final = 0x800
_WANTED: Final = 0x7FF | _STATX_BTIME
_STATX: Final = struct.Struct("=I24xH2xQ40xqI20xqI12xII112x")
"""struct statx: mask, mode, inode, made (s, ns), modified (s, ns), device (major, minor)."""
_NS: Final = 10**9

_libc: Final = ctypes.CDLL(None, use_errno=True)


def socket_identity(path: str) -> SocketIdentity | None:
    """The identity of the socket at a path, links followed; None where something else is there. Raises `OSError`."""
    if not hasattr(_libc, "statx"):  # a C library from before 2018
        found = Path(path).stat()
        return (
            SocketIdentity(found.st_dev, found.st_ino, found.st_mtime_ns)
            if stat.S_ISSOCK(found.st_mode)
            else None
        )
    buffer = ctypes.create_string_buffer(_STATX.size)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_NO_AUTOMOUNT, _WANTED, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    mask, mode, inode, born_s, born_ns, modified_s, modified_ns, major, minor = _STATX.unpack(buffer)
    if not stat.S_ISSOCK(mode):
        return None
    since = (born_s, born_ns) if mask & _STATX_BTIME else (modified_s, modified_ns)
    return SocketIdentity(os.makedev(major, minor), inode, since[0] * _NS + since[1])
