"""The contents of the image: the steps of the Dockerfile, run on what the image is built from.

No base image can be had here, so the layers themselves are not built: `deploy/image/build.sh` makes the same environment.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.tidy.repository import ROOT, output, pyproject, repository_files, run

IMAGE: Final = ROOT / "deploy/image"
PROGRAMS: Final = ("parley-agent", "parley-scheduler", "parley-informant")
MOST_MIB: Final = 160


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that `.dockerignore` lets into a build."""
    first, *lines = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert first == "*"
    target = tmp_path_factory.mktemp("context")
    for name in repository_files():
        if any(name == each or name.startswith(f"{each}/") for each in kept):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def built(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the image gets, made from nothing."""
    target = tmp_path_factory.mktemp("image") / "parley"
    script = [context / "deploy/image/build.sh", context, target]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, output(done)
    return target


@pytest.mark.timeout(400)
def test_the_image_has_the_programs_and_what_they_need_on_kubernetes(built: Path) -> None:
    for program in PROGRAMS:
        told = run([built / "bin" / program, "--version"], cwd=built, env={"PATH": "/usr/bin:/bin"})
        assert told.returncode == 0, output(told)
        assert pyproject()["project"]["version"] in told.stdout
    done = run(
        [built / "bin/python", "-Ic", "import hosting.kubernetes.api as it; print(it.__file__)"], cwd=built
    )
    assert done.stdout.startswith(str(built)), output(done)


def sbom(built: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((built / "sbom.cdx.json").read_text())
    return found


def distributions(built: Path) -> dict[str, str]:
    site = str(next((built / "lib").glob("*/site-packages")))
    return {each.name: each.version for each in importlib.metadata.distributions(path=[site])}


def test_the_sbom_lists_every_distribution_and_nothing_else(built: Path) -> None:
    found = sbom(built)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    parts = [found["metadata"]["component"], *found["components"]]
    (python,) = (each for each in parts if each["name"] == "python")
    parts.remove(python)
    assert {each["name"]: each["version"] for each in parts} == distributions(built)
    assert len({each["bom-ref"] for each in parts}) == len(parts)
    assert all(each["purl"] == each["bom-ref"] for each in parts)
    by = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert by.keys() == {each["bom-ref"] for each in parts}
    own = found["metadata"]["component"]["bom-ref"]
    assert {"pkg:pypi/aiohttp", "pkg:pypi/grpcio", "pkg:pypi/kubernetes-asyncio"} <= {
        each.partition("@")[0] for each in by[own]
    }
    assert all(each in by for on in by.values() for each in on)


def test_the_same_parts_make_the_same_sbom(built: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    done = run([built / "bin/python", "-I", IMAGE / "sbom.py", again], cwd=built)
    assert done.returncode == 0, output(done)
    assert again.read_bytes() == (built / "sbom.cdx.json").read_bytes()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("file", ["requirements.txt", "build-requirements.txt"])
def test_a_file_with_another_hash_is_not_installed(context: Path, tmp_path: Path, file: str) -> None:
    """One hash of the list is another one, as if the package had been replaced where it is got from."""
    changed = tmp_path / "changed"
    shutil.copytree(context, changed)
    listed = changed / "deploy/image" / file
    name = "packaging" if file.startswith("build") else "tzdata"
    text, count = re.subn(
        rf"(?m)^({name}==\S+ \\\n    --hash=sha256:)[0-9a-f]{{64}}$", r"\g<1>" + 64 * "0", listed.read_text()
    )
    assert count == 1
    listed.write_text(text)
    script = [changed / "deploy/image/build.sh", changed, tmp_path / "parley"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "parley/bin/parley").exists()


def test_the_image_has_nothing_else_and_the_versions_that_are_tested(built: Path) -> None:
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    found = distributions(built)
    own = found.pop("parley-autoscaler")
    assert own == pyproject()["project"]["version"]
    known = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in constraints.items()}
    assert {name: known[re.sub(r"[-_.]+", "-", name).lower()] for name in found} == found
    assert found.keys().isdisjoint({"pip", "setuptools", "pytest", "hypothesis", "mypy", "ruff", "textual"})
    assert found.keys().isdisjoint({"hatchling", "pluggy", "cryptography"})
    assert not list((built / "bin").glob("pip*"))
    bytes_ = sum(file.stat().st_size for file in built.rglob("*") if file.is_file() and not file.is_symlink())
    assert bytes_ < MOST_MIB * 2**20


def test_the_dockerfile_runs_these_steps_as_the_user_of_the_manifests() -> None:
    lines = (IMAGE / "Dockerfile").read_text().splitlines()
    assert "RUN /source/deploy/image/build.sh /source /opt/parley" in lines
    bases = {line.split()[1] for line in lines if line.startswith("FROM ")}
    assert [bool(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)) for base in bases] == [True]
    (user,) = (line.removeprefix("USER ") for line in lines if line.startswith("USER "))
    for name in ("agent/daemonset.yaml", "scheduler/deployment.yaml"):
        pod = yaml.safe_load((ROOT / "deploy/base" / name).read_text())["spec"]["template"]["spec"]
        context = pod["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
