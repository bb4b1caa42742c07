"""Directories for Unix sockets, whose paths have 107 bytes at most."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory with a short path, even if those of `TMPDIR` and pytest are long."""
    with tempfile.TemporaryDirectory(prefix="parley-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)
