"""The strategies that have begun to act and have not put back their changes yet, told to the next life of an agent that is killed."""

from pathlib import Path


class RunMarks:
    """A file in `directory` for each such strategy. Any thread may call every method; all raise `OSError`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, strategy: str) -> bool:
        """Whether the strategy was left acting."""
        return (self._directory / strategy).exists()

    def put(self, strategy: str) -> None:
        """The strategy begins to act."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        (self._directory / strategy).touch(mode=0o600)

    def remove(self, strategy: str) -> None:
        """Note that the changes of the strategy were put back."""
        (self._directory / strategy).unlink(missing_ok=True)
