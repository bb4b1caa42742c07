"""gRPC channels to Unix sockets whose paths are taken as they are: no character in a name means anything.

gRPC reads a target as a URL, so every byte of the path that could mean something is percent-encoded. One is left: the library splits
the decoded path at commas. Such a socket is dialled through a descriptor of the file, under a name without commas; and so is a socket
whose path is longer than the kernel takes, as it may be outside of the container where the plugin made it.
"""

import os
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio

MAX_PATH_BYTES: Final = 107
"""How many bytes the path of a socket may have on Linux."""
_OPTIONS: Final = (
    # The socket's name is no authority: plugins in other languages refuse what is no host name.
    ("grpc.default_authority", "localhost"),
    # Channels to one path share nothing: a connection that waits before it reconnects would hold up a new one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that accepts and says nothing: its connection is given up after so long, also when nobody waits for it any more.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
    # No answer of a plugin needs more, and no plugin may fill our memory.
    ("grpc.max_receive_message_length", 2**20),
)


class UnixChannel:
    """A channel to the socket at a path. `close` must be called in the end."""

    def __init__(self, path: str) -> None:
        """Open the channel; nothing is dialled yet. Raises `OSError` where a descriptor is needed and there is no such file."""
        self._descriptor: int | None = None
        if "," in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
            self._descriptor = os.open(path, os.O_PATH)
            path = f"/proc/self/fd/{self._descriptor}"
        scheme = "unix://" if path.startswith("/") else "unix:"
        self.channel = grpc.aio.insecure_channel(scheme + quote(os.fsencode(path)), options=_OPTIONS)

    async def close(self) -> None:
        """Close the connection at once; calls under way fail."""
        await self.channel.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
