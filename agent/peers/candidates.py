"""Which of several schedulers is asked: the one that leads, told by its epoch. Computes only.

Several may be there at once: those of the settings, each ready endpoint of a Service, and the leader that another has named. Age
says nothing: a paused process comes back with all its memories. The core refuses a reply whose epoch is below the highest seen; here the
next scheduler is asked then.
"""

from collections.abc import Callable

from hosting.addresses import is_url


class Candidates:
    """`listed` gives the URLs as they are now; they may change at any time."""

    def __init__(self, listed: Callable[[], tuple[str, ...]]) -> None:
        self._listed = listed
        self._current: str | None = None
        self._named: str | None = None
        """A leader that is in no list: it is asked until it fails."""
        self._epoch = 0

    def current(self) -> str | None:
        """The scheduler to ask; None if there is none."""
        if self._current is None or self._current not in (*self._listed(), self._named):
            self._current = next(iter(self._listed()), None)
        return self._current

    def answered(self, url: str, epoch: int | None) -> bool:
        """A scheduler granted under this epoch; None if it sent none. Returns whether it may be asked again: else another is next."""
        if epoch is not None and epoch < self._epoch:
            self.failed(url)
            return False
        self._epoch = max(self._epoch, epoch or 0)
        return True

    def failed(self, url: str, leader: str | None = None) -> None:
        """A scheduler did not answer or does not lead: the leader that it names is next, or the next of the list."""
        if url != self._current:
            return  # another is asked already
        listed = self._listed()
        named = _url(leader, url) if leader else None
        if named is not None and named != url:
            self._named = self._current = named
            return
        self._named = None
        after = listed.index(url) + 1 if url in listed else 0
        self._current = listed[after % len(listed)] if listed else None


def _url(address: str, like: str) -> str | None:
    """The URL of an address that a scheduler names, which may leave out the scheme; None if it is no address."""
    scheme, _, _ = like.partition("://")
    found = address if "://" in address else f"{scheme}://{address}"
    found = f"{found.rstrip('/')}/"
    return found if is_url(found, (scheme,)) else None
