"""`pip install .` for documents: the distribution in this directory counts as installed, and nothing else changes."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Write what an installed distribution tells of itself beside its modules."""
    assert sys.argv[1:] == ["install", "--no-build-isolation", "."], sys.argv
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    info = Path(f"{project['name'].replace('-', '_')}-{project['version']}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
