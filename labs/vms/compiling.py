"""Compile modules to bytecode with the same bytes each time. `image` runs this file as a program of its own.

The output of `marshal` depends on which strings the process knows already, so each run is given a fixed set of files in a fixed
order. Input: lines of source, bytecode file and the module's path in the guest, separated by tabs.
"""

import contextlib
import py_compile
import sys


def main() -> None:
    for line in sys.stdin:
        source, compiled, shown = line.rstrip("\n").split("\t")
        # A template of a package may have the suffix of a module, and be none.
        with contextlib.suppress(py_compile.PyCompileError, ValueError):
            py_compile.compile(
                source,
                compiled,
                shown,
                doraise=True,
                quiet=2,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


if __name__ == "__main__":
    main()
