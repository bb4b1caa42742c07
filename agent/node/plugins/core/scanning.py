"""Which sockets have come and gone between two looks at the registry's folder.

The kernel's events only say that something may have changed; whatever the watcher does follows from two looks. So an event that was
lost, came twice or came late can do no harm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Which file a socket is. Two files that follow each other at one path differ in this.

    The number of the inode alone does not tell: many file systems give a new file the number of the one that was just removed. The time
    of the last change tells too much: chmod, touch and a further link change that. So the time at which the file was made is part of
    the identity. File systems that do not tell that time give the time of the last modification instead: there, a touch is taken for
    a new socket, which costs one more registration; the other way round, a new socket would be missed.
    """

    device: int
    inode: int
    born_ns: int
    """When the file was made, in nanoseconds since 1970."""


Sockets = Mapping[str, SocketIdentity]
"""The sockets in the folder, by their paths."""


def is_looked_at(name: str) -> bool:
    """Whether a name in the folder counts: not hidden, and readable as text, so that it can be told in logs and over HTTP.

    That holds for sockets and for folders, whenever they were made. The published watcher enters hidden folders that are there at
    its start and no others, so that a restart changes which plugins are registered.
    """
    return not name.startswith(".") and not any("\ud800" <= each <= "\udfff" for each in name)


def changes(before: Sockets, after: Sockets) -> Iterator[tuple[str, SocketIdentity | None]]:
    """What became of the paths: first those that are gone (None), then those with a new socket, in the order in which the sockets
    were made. So the newest plugin of a name is the same one after a restart of ours. Other paths are not named."""
    for path in sorted(before.keys() - after.keys()):
        yield path, None
    new = (path for path in after if before.get(path) != after[path])
    for path in sorted(new, key=lambda path: (after[path].born_ns, path)):
        yield path, after[path]
