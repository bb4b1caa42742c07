"""`make image-requirements`: writes deploy/image/requirements.txt and build-requirements.txt, the packages of the image with the hashes of their files.

pip resolves what pyproject.toml wants of the image, at the versions of constraints.txt, for both kinds of machines, and installs nothing. A
file may be installed that has one of the hashes; where it comes from is the affair of the one who builds.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.tidy.repository import ROOT, pyproject

IMAGE: Final = ROOT / "deploy/image"
EXTRAS: Final = ("kubernetes", "page", "plugins")
"""The extras of the image."""
PYTHON: Final = "3.11"
"""That of the Dockerfile's base."""
MACHINES: Final = ("x86_64", "aarch64")
_GLIBC: Final = range(36, 16, -1)
"""Minor versions of glibc 2 that files may be made for: the base has 2.36."""
_HEAD: Final = """\
# Made by `make image-requirements`. {what}
# One hash for x86_64 and one for aarch64, or one where a file serves both.
"""


def wanted() -> dict[str, tuple[str, list[str]]]:
    """What each file is for, and its requirements."""
    project = pyproject()
    extras = [each for extra in EXTRAS for each in project["project"]["optional-dependencies"][extra]]
    return {
        "requirements.txt": (
            "Everything in the image but Parley itself.",
            [*project["project"]["dependencies"], *extras],
        ),
        "build-requirements.txt": (
            "What builds Parley's wheel; nothing of it gets into the image.",
            list(project["build-system"]["requires"]),
        ),
    }


def resolved(requirements: list[str]) -> dict[str, set[str]]:
    """`name==version` of everything that is needed, with the SHA-256 of a file for each kind of machine."""
    found: dict[str, set[str]] = defaultdict(set)
    for machine in MACHINES:
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.json"
            platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}"]
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
                    *("--only-binary=:all:", f"--target={directory}/none", f"--report={report}"),
                    *(f"--python-version={PYTHON}", "--implementation=cp"),
                    *(f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")),
                    *(f"--platform={each}" for each in platforms),
                    *(f"--constraint={ROOT / 'constraints.txt'}", *requirements),
                ],
                check=True,
            )
            for each in json.loads(report.read_text())["install"]:
                named = f"{each['metadata']['name'].lower().replace('_', '-')}=={each['metadata']['version']}"
                found[named].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def text(what: str, packages: dict[str, set[str]]) -> str:
    lines = [
        " \\\n".join((name, *(f"    --hash=sha256:{each}" for each in sorted(hashes))))
        for name, hashes in sorted(packages.items())
    ]
    return _HEAD.format(what=what) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for file, (what, requirements) in wanted().items():
        (IMAGE / file).write_text(text(what, resolved(requirements)))
