"""The file of a VM in a directory of a back end: its name."""

import hashlib
from pathlib import Path
from typing import Final

from agent.core.model import Vm

MAX_STEM: Final = 200
"""Bytes of a file's name, without its ending."""


def vm_path(directory: Path, vm: Vm) -> Path:
    """The file in which a back end keeps its knowledge of `vm`."""
    stem = f"{vm.pod.namespace}.{vm.pod.name}"
    if len(stem.encode()) > MAX_STEM:  # a pod's name may be longer than a file's
        stem = f"{stem[:64]}.{hashlib.sha256(stem.encode()).hexdigest()}"
    return directory / f"{stem}.json"
