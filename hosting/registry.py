"""Factories by name: ours, those that a process registers, and those that installed distributions offer by entry points.

A name that is bad, taken or not registered is an error at start-up: a typing error must never switch anything off.
"""

from collections.abc import Callable
from importlib import metadata
from typing import Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


class RegistryError(ValueError):
    """A name cannot be registered, or is not. The text names it and says which names are possible."""


def at_once(function: Callable[..., object], *arguments: object) -> object:
    """Call code that anybody may have written. An error that it raises is its own failure and comes as an `Exception`: nothing is awaited,
    so nobody can be cancelled, the program's own signals raise nothing (`hosting.lifecycle`), and no plugin ends the program."""
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"it raised {error!r}") from error


def error_text(error: BaseException) -> str:
    """The text of an error of code that anybody may have written, with an error class of any kind."""
    try:
        return str(error) or repr(error)
    except Exception:  # noqa: BLE001 - the class is anybody's
        return type(error).__name__


def is_text(name: object) -> bool:
    """Whether something is a text and not empty."""
    return isinstance(name, str) and bool(name)


class FactoryRegistry(Generic[F]):
    """Factories by name, of one `sort` (for messages), such as `pool plugin`.

    `is_name` says which names there may be, and `rule` says the same to people.
    """

    def __init__(
        self,
        sort: str,
        is_name: Callable[[str], object] = is_text,
        rule: str = "a name must be a text and not empty",
    ) -> None:
        self._sort = sort
        self._is_name = is_name
        self._rule = rule
        self._factories: dict[str, Callable[[], F]] = {}

    def register(self, name: str, factory: F) -> None:
        """Add a factory. Raises `RegistryError` if the name is bad or taken, or if the factory cannot be called."""
        if not callable(factory):
            raise RegistryError(f"{self._sort} {name!r}: the factory must be callable, not {factory!r}")
        self._add(name, lambda: factory)

    def add_entry_point(self, entry: metadata.EntryPoint) -> None:
        """Add the factory that `entry` names; its module is imported at its first use. Raises `RegistryError` for a bad or taken name."""
        self._add(entry.name, lambda: self._loaded(entry))

    def load_entry_points(self, group: str) -> None:
        """Add the factories that installed distributions offer under `group`. Raises `RegistryError` for a bad or taken name."""
        for entry in metadata.entry_points(group=group):
            self.add_entry_point(entry)

    def get(self, name: str) -> F:
        """The factory of that name. Raises `RegistryError`, naming those that there are."""
        load = self._factories.get(name)
        if load is None:
            known = ", ".join(self.names()) or "none"
            raise RegistryError(f"{self._sort} {name!r} is not registered (there are: {known})")
        return load()

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._factories))

    def _add(self, name: str, load: Callable[[], F]) -> None:
        if not self._is_name(name):
            raise RegistryError(f"{self._sort}: {self._rule}, not {name!r}")
        if name in self._factories:
            raise RegistryError(self._taken(name))
        self._factories[name] = load

    def _taken(self, name: str) -> str:
        """The fault of a name that is taken; a published registry has other words for it."""
        return f"{self._sort} {name!r} is registered already"

    def _loaded(self, entry: metadata.EntryPoint) -> F:
        """The factory that an entry point names. Raises `RegistryError` if it cannot be imported, or is no factory."""
        about = f"{self._sort} {entry.name!r}: {entry.value}"
        try:
            factory = at_once(entry.load)
        except Exception as error:
            raise RegistryError(f"{about} cannot be imported: {error}") from error
        if not callable(factory):
            raise RegistryError(f"{about} is no factory")
        return cast("F", factory)
