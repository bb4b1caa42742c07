"""The layers hold: no package imports one above or beside it."""

import sys

from tests.tidy.repository import output, run

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main(prog_name='lint-imports')"


def test_every_import_contract_is_kept() -> None:
    # Without the cache: a run must not depend on what an earlier one left in the checkout.
    done = run([sys.executable, "-c", LINT_IMPORTS, "--no-cache"])
    assert done.returncode == 0, output(done)
