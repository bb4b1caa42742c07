"""Build the programs of Kubernetes that the tests in tests/kube and tests/node start.

    python tests/kube/assets/build.py [--into FOLDER]

The folder is by default the one that `KUBEBUILDER_ASSETS` names, else one below the user's cache, with the versions in
its name. What is already there is kept. etcd, containerd, runc, the CNI plugins and a static busybox are Debian's packages;
`--packages` installs those that are missing, which needs root.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))  # this program runs before anything of the project is installed

from labs.clusters.programs import KUBERNETES_VERSION, folder_of_programs  # noqa: E402 # needs the line above

PROGRAMS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "hollow": "./hollow",
    "exampleplugin": "./exampleplugin",
}
OURS = ("hollow", "exampleplugin")
"""Programs of our own, in the folders of the same names."""
FLAGS = " ".join(
    [
        "-s -w",
        *(
            f"-X k8s.io/component-base/version.{name}={value}"
            for name, value in (
                ("gitVersion", f"v{KUBERNETES_VERSION}"),
                ("gitMajor", KUBERNETES_VERSION.split(".")[0]),
                ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
            )
        ),
    ]
)
"""Without debug information; and the programs say their version, which nodes report."""
PACKAGES = {
    "etcd": "etcd-server",
    "openssl": "openssl",
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "gcc": "gcc libc6-dev",
}


def _state_of_sources(name: str) -> str:
    """A digest of what one of our programs is built from, so that a change of the program builds it again."""
    digest = hashlib.sha256(FLAGS.encode())
    for file in sorted([HERE / "go.mod", HERE / "tools.go", *(HERE / name).glob("*.go")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def file_of(name: str, folder: Path) -> Path:
    """One of our programs, built from this very source: checkouts whose sources differ share the folder."""
    return folder / f"{name}-{_state_of_sources(name)[:12]}"


def _run(command: list[str], cwd: Path) -> None:
    environment = dict(os.environ, CGO_ENABLED="0", GOFLAGS="-mod=mod -buildvcs=false", GOTOOLCHAIN="local")
    subprocess.run(command, cwd=cwd, env=environment, check=True)


def build(folder: Path) -> None:
    """Build what is missing in `folder`. The file `hollow` is the hollow node of the checkout that asked last, for the demo."""
    hollow = file_of("hollow", folder)
    files = {name: folder / name for name in PROGRAMS} | {name: file_of(name, folder) for name in OURS}
    missing = {name: file for name, file in files.items() if not file.exists()}
    if not missing:
        _name(hollow)
        print(f"{folder}: all programs of Kubernetes {KUBERNETES_VERSION} are there")
        return
    if shutil.which("go") is None:
        sys.exit(
            "go is missing: install Go 1.25 or newer, or name a folder with the programs in KUBEBUILDER_ASSETS"
        )
    if f"k8s.io/kubernetes v{KUBERNETES_VERSION}\n" not in (HERE / "go.mod").read_text():
        sys.exit(
            f"go.mod names another version of Kubernetes than {KUBERNETES_VERSION} of labs/clusters/programs.py"
        )
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix="source-") as made:
        source = Path(made) / "source"
        shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        _run(["go", "mod", "tidy"], source)
        for name, file in missing.items():
            since = time.monotonic()
            print(f"building {name} ... ", end="", flush=True)
            unfinished = Path(made) / name
            _run(
                ["go", "build", "-trimpath", f"-ldflags={FLAGS}", "-o", str(unfinished), PROGRAMS[name]],
                source,
            )
            unfinished.replace(file)
            print(f"{time.monotonic() - since:.0f} s", flush=True)
    _name(hollow)
    print(f"{folder}: built {', '.join(missing)} in {time.monotonic() - begun:.0f} s")


def _name(hollow: Path) -> None:
    """Let the file `hollow` be that hollow node."""
    newest = hollow.with_name(f".{hollow.name}.newest")
    newest.unlink(missing_ok=True)
    newest.symlink_to(hollow.name)
    newest.replace(hollow.with_name("hollow"))


def install_packages() -> None:
    """Install Debian's packages that are missing. Needs root."""
    missing = [
        each for program, names in PACKAGES.items() if shutil.which(program) is None for each in names.split()
    ]
    if not missing:
        return
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    print(f"installing {', '.join(missing)}", flush=True)
    subprocess.run(["apt-get", "update", "-q"], check=True, env=environment, stdout=subprocess.DEVNULL)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    subprocess.run(install, check=True, env=environment, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=folder_of_programs(),
        help="folder of the programs (default: %(default)s)",
    )
    parser.add_argument(
        "--packages", action="store_true", help="also install Debian's packages that are missing (root)"
    )
    options = parser.parse_args()
    if options.packages:
        install_packages()
    build(options.into)


if __name__ == "__main__":
    main()
