"""The programs that a cluster on this machine consists of: their places, their start and their end."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

KUBERNETES_VERSION: Final = "1.35.4"
BUILT: Final = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl", "kubelet", "hollow")
"""The programs that `make kube-assets` builds."""
INSTALLED: Final = ("etcd", "openssl", "setpriv")
"""The programs of the system that every cluster needs besides."""
END_S: Final = 5.0
"""How long a program has after SIGTERM."""
START_S: Final = 60.0
"""How long a program has for its first answer; on an idle machine it takes seconds."""
POLL_S: Final = 0.02
T = TypeVar("T")


class ClusterError(Exception):
    """A cluster cannot be started. The text is for a person, and says what would help."""


def folder_of_programs() -> Path:
    """The folder that $KUBEBUILDER_ASSETS names, else one of the user's cache with the version in its name."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    return cache / "parley" / f"kube-{KUBERNETES_VERSION}"


class Programs:
    """The programs of one folder. `hollow` names another file for the hollow nodes than the folder's own."""

    def __init__(self, folder: Path | None = None, hollow: Path | None = None) -> None:
        self._folder = folder or folder_of_programs()
        self._hollow = hollow

    def path(self, name: str) -> str:
        """The file of a program. Raises `ClusterError` if there is none."""
        if name not in BUILT:
            found = shutil.which(name)
            if found is None:
                raise ClusterError(f"{name} is missing: `make kube-assets` installs it (as root)")
            return found
        file = self._hollow if name == "hollow" and self._hollow else self._folder / name
        if not file.exists():
            raise ClusterError(f"{file} is missing: `make kube-assets` builds it, once, in some minutes")
        return str(file)

    def check(self, names: Sequence[str]) -> None:
        """Raises `ClusterError` that names everything that is missing."""
        faults = []
        for name in names:
            try:
                self.path(name)
            except ClusterError as error:
                faults.append(str(error))
        if faults:
            raise ClusterError("; ".join(faults))


class ClusterProcess:
    """A program that runs beside this one, with its output in a file. The kernel kills it when this process dies."""

    def __init__(
        self, name: str, command: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.output = logs / f"{name}.log"
        with self.output.open("ab") as file:
            # The signal is bound to the thread that starts the program: start clusters from a thread that stays.
            self._process = subprocess.Popen(
                ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, **environment) if environment else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        if self.is_running():
            self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end; SIGKILL follows if that takes too long."""
        self.send(number)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_lines(self, count: int = 5) -> str:
        """The end of what it has printed."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-count:])


def await_answer(
    what: str, look: Callable[[], T | None], *beside: ClusterProcess, within_s: float = START_S
) -> T:
    """The result of `look`, as soon as it is true. OSError means "not yet".

    Raises `ClusterError` after `within_s`, or as soon as one of the processes `beside` has ended.
    """
    limit_s = time.monotonic() + within_s
    fault = "no answer"
    while time.monotonic() < limit_s:
        try:
            found = look()
        except OSError as error:
            found, fault = None, str(error)
        if found:
            return found
        for process in beside:
            if not process.is_running():
                raise ClusterError(f"{process.name} has ended:\n{process.last_lines()}")
        time.sleep(POLL_S)
    tails = "".join(f"\n{process.name}: {process.last_lines()}" for process in beside)
    raise ClusterError(f"{what} took more than {within_s:g} s ({fault}){tails}")
