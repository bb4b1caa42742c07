"""Paths of the programs' pages."""

from urllib.parse import quote


def path_of(vm: str) -> str | None:
    """`NAMESPACE/NAME` as a part of a path; None for a name that no path can carry."""
    namespace, _, name = vm.partition("/")
    if {namespace, name} & {"", ".", ".."} or "/" in name:
        return None
    return "/".join(quote(part, safe="", errors="replace") for part in (namespace, name))
