"""The wheel holds our six packages and nothing else, and works where only its declared dependencies are installed."""

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from tests.tidy.repository import PACKAGES, output, pyproject, run

PROGRAMS = ("parley", "kubectl-parley", "parley-agent", "parley-scheduler", "parley-informant")
SCRIPTS = (*PROGRAMS, "kubectl_complete-parley")

WHOSE = f"""
import importlib, importlib.metadata, json
owners = importlib.metadata.packages_distributions()
print(json.dumps({{n: [importlib.import_module(n).__file__, owners.get(n)] for n in {PACKAGES!r}}}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the project's build back end without isolation, so without a network."""
    target = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target])
    assert done.returncode == 0, output(done)
    (built,) = target.glob("*.whl")
    return built


def runtime_distributions() -> dict[str, importlib.metadata.Distribution]:
    """The distributions that our runtime dependencies need, theirs included, as installed beside the tests."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(text) for text in pyproject()["project"]["dependencies"]]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        extras = wanted.extras or {""}
        if name in found or not (wanted.marker is None or wanted.marker.evaluate()):
            continue
        found[name] = importlib.metadata.distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                waiting.append(needed)
    return found


def link_dependencies(target: Path) -> None:
    """Put links to the installed runtime dependencies into `target`: no network, no test tools, no editable project."""
    for distribution in runtime_distributions().values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = target / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` directory of a clean environment with the wheel in it."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip beside the tests; run `make test`, whose environment has it")
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    programs = home / "bin"
    dependencies = home / "dependencies"
    dependencies.mkdir()
    link_dependencies(dependencies)
    (site,) = (home / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    install = ["install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    done = run([*pip, "--python", str(programs / "python"), *install], cwd=home)
    assert done.returncode == 0, output(done)
    return programs


def clean_environment(home: Path) -> dict[str, str]:
    """An environment in which nothing of the checkout or of the test run can leak through a variable."""
    return {"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8"}


def test_the_wheel_holds_exactly_our_packages(wheel: Path) -> None:
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    metadata = f"parley_autoscaler-{pyproject()['project']['version']}.dist-info"
    assert {name.parts[0] for name in names} == {*PACKAGES, metadata}
    assert {PurePosixPath(package, "py.typed") for package in PACKAGES} <= set(names)
    assert PurePosixPath(metadata, "licenses", "LICENSE") in names
    programs = {PurePosixPath("labs/clusters/node", each) for each in ("inside.sh", "load.c", "pause.c")}
    in_guests = ("initramfs.sh", "init.sh", "informant.yaml", "quick.yaml")
    programs |= {PurePosixPath("labs/vms/guest", each) for each in in_guests}
    programs |= {PurePosixPath("scheduler/page", each) for each in ("page.html", "page.css")}
    assert programs <= set(names)
    assert {name.suffix for name in names if name.parts[0] in PACKAGES and name not in programs} - {
        "",
        ".proto",
        ".py",
        ".pyi",
        ".typed",
    } == set()
    assert [name for name in names if {"tests", "docs", "__pycache__"} & set(name.parts)] == []


def test_the_installed_packages_are_the_wheels_and_have_one_owner(installed: Path, tmp_path: Path) -> None:
    done = run([installed / "python", "-c", WHOSE], cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.returncode == 0, output(done)
    (site,) = (installed.parent / "lib").glob("python*/site-packages")
    expected = {name: [str(site / name / "__init__.py"), ["parley-autoscaler"]] for name in PACKAGES}
    assert json.loads(done.stdout) == expected


def test_the_console_scripts_are_the_declared_ones(installed: Path) -> None:
    assert set(pyproject()["project"]["scripts"]) == set(SCRIPTS)
    assert {script for script in SCRIPTS if (installed / script).is_file()} == set(SCRIPTS)


@pytest.mark.parametrize("script", PROGRAMS)
def test_an_installed_program_tells_its_version_and_explains_itself(
    installed: Path, tmp_path: Path, script: str
) -> None:
    """Both in one start: the program's own script, loaded and called twice."""
    twice = f"""
import runpy, sys
for option in ("--version", "--help"):
    sys.argv = [{script!r}, option]
    try:
        runpy.run_path({str(installed / script)!r}, run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
"""
    done = run([installed / "python", "-c", twice], cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.returncode == 0, output(done)
    version, _, help_text = done.stdout.partition("\n")
    assert re.findall(r"\d+\.\d+\S*", version) == [pyproject()["project"]["version"]]
    assert "--help" in help_text
