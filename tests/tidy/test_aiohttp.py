"""Nothing uses the undocumented parts of aiohttp: a release may change them."""

import ast

from tests.tidy.repository import PACKAGES, ROOT, python_files

DOCUMENTED = {"aiohttp", "aiohttp.web"}
BESIDE = {("hosting/kubernetes/api.py", "aiohttp.http_exceptions")}
"""An exception that it documents nowhere; tests/unit/hosting/kubernetes/test_api.py looks at its place."""


def undocumented(source: str) -> list[str]:
    """The modules of aiohttp that are imported and not documented, and the underscore names of aiohttp's modules and classes."""
    tree = ast.parse(source)
    ours: set[str] = set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aiohttp":
            ours |= {each.asname or each.name for each in node.names}
            found += [node.module or ""] if node.module not in DOCUMENTED else []
            found += [each.name for each in node.names if each.name.startswith("_")]
        elif isinstance(node, ast.Import):
            names = [each for each in node.names if each.name.partition(".")[0] == "aiohttp"]
            ours |= {(each.asname or each.name).partition(".")[0] for each in names}
            found += [each.name for each in names if each.name not in DOCUMENTED]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            words = ast.unparse(node).split(".")
            found += [ast.unparse(node)] if words[0] in ours else []
        elif isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).split(".")[0] in ours | {"RequestHandler"} for base in node.bases
        ):
            found += [f"class {node.name}"]
    return found


def test_no_module_uses_what_aiohttp_does_not_document() -> None:
    found = {
        (file, name)
        for file in python_files(*PACKAGES)
        if "aiohttp" in (text := (ROOT / file).read_text())
        for name in undocumented(text)
    }
    assert found - BESIDE == set()


def test_the_look_finds_modules_names_and_classes() -> None:
    assert undocumented("from aiohttp import web\nweb.Server(handle)\n") == []
    assert undocumented("from aiohttp.helpers import x\n") == ["aiohttp.helpers"]
    assert undocumented("from aiohttp import web\nweb.Server._connections\n") == ["web.Server._connections"]
    assert undocumented("import aiohttp\n\nclass A(aiohttp.web.Server): pass\n") == ["class A"]
