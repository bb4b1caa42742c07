"""The layers hold: no package imports one above or beside it."""

import re
import sys

from tests.tidy.repository import ROOT, output, python_files, run

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main(prog_name='lint-imports')"


def test_every_import_contract_is_kept() -> None:
    # Without the cache: a run must not depend on what an earlier one left in the checkout.
    done = run([sys.executable, "-c", LINT_IMPORTS, "--no-cache"])
    assert done.returncode == 0, output(done)


def test_hosting_holds_what_the_decision_lists() -> None:
    page = (ROOT / "docs/decisions/0021-what-hosting-holds.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    modules = {name.split("/")[1].removesuffix(".py") for name in python_files("hosting")}
    assert sorted(listed) == sorted(modules - {"__init__"})
