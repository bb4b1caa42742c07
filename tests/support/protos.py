"""Makes the modules of the .proto files of node plugins: `python -m tests.support.protos [DIRECTORY]`, which is `make protos`.

They are committed, so that an installation of the agent needs no compiler; `tests/tidy/test_protos.py` compares.
"""

import sys
from pathlib import Path
from typing import Final

from grpc_tools import protoc  # type: ignore[import-untyped]  # the library has no types

ROOT: Final = Path(__file__).parents[2]
PROTOS: Final = "agent/node/plugins/proto"


def made(into: Path) -> None:
    """Make all modules below `into`, as they lie below the root. Raises `RuntimeError` if the compiler refuses a file."""
    files = sorted((ROOT / PROTOS).glob("*.proto"))
    _compile(into, files, "python_out", "mypy_out")
    _compile(
        into, [file for file in files if "\nservice " in file.read_text()], "grpc_python_out", "mypy_grpc_out"
    )


def _compile(into: Path, files: list[Path], *outputs: str) -> None:
    # The plugins of the compiler lie beside the interpreter, and need not be on the path.
    beside = Path(sys.executable).parent
    plugins = [f"--plugin={name}={beside / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    kinds = [f"--{output}={'quiet:' if 'mypy' in output else ''}{into}" for output in outputs]
    names = [file.relative_to(ROOT).as_posix() for file in files]
    if protoc.main(["protoc", f"-I{ROOT}", *plugins, *kinds, *names]):
        raise RuntimeError(f"the compiler refuses one of {', '.join(names)}")


if __name__ == "__main__":
    made(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
