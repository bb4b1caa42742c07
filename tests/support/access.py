"""Access for schedulers in tests."""

from pathlib import Path

from hosting import logs
from hosting.logs import Logger
from scheduler.access.ports import Access, AccessOptions

LOCAL: AccessOptions = {"access": None, "plain_http": False, "pool_writes_from_anywhere": False}
"""The command line without any of its options: this machine may do everything."""


def local_access() -> Access:
    return Access.opened(LOCAL, logs.logger("access"))


def access_by(path: Path, text: str, log: Logger, *, on_kubernetes: bool = False) -> Access:
    """The access of a file with this text."""
    path.write_text(text)
    return Access.opened({**LOCAL, "access": path}, log, on_kubernetes=on_kubernetes)
