"""docs/security.md tells of every route that a program serves, below the port of that program, and of no other."""

import ast
import re

import pytest

from tests.tidy.repository import ROOT, python_files

PORTS = {"scheduler": 10299, "agent": 10300, "informant": 10301}


def served(package: str) -> set[str]:
    """The routes that the code of a package makes, as `METHOD /path`."""
    found = set()
    for name in python_files(package):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = [part.value for part in node.args[:2] if isinstance(part, ast.Constant)]
            if called == "Route" and len(words) == 2:
                found.add(" ".join(map(str, words)))
    return found


@pytest.mark.parametrize(("package", "port"), PORTS.items())
def test_every_route_is_told_of_with_what_a_caller_can_do(package: str, port: int) -> None:
    page = (ROOT / "docs/security.md").read_text()
    (section,) = re.findall(rf"^## The {package}'s port, {port}\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    told = set()
    for first, rest in re.findall(r"^\| (`[A-Z]+ [^|]*) \| ([^|]+) \|$", section, re.MULTILINE):
        assert rest.strip()
        told |= set(re.findall(r"`([A-Z]+ [^`]+)`", first))
    assert told == {route for route in served(package) if not route.startswith("* ")}
