"""A resizer: the size of each VM is a file, `{"cpu_milli": 2000, "memory_bytes": 2147483648}`. A VM without a file has its minimum.

python examples/node-plugins/file_resizer.py --registry /var/lib/parley/plugins_registry --state /var/lib/file-resizer
"""

import argparse
import json
from pathlib import Path

from parley.node_plugins import (
    Amount,
    NotWrittenError,
    PluginVm,
    ResizerPlugin,
    TargetRefusedError,
    VmSize,
    WriteDeadline,
    serve,
)


class FileResizer(ResizerPlugin):
    """Writes files instead of commanding a hypervisor, as a real resizer would do. A file is written whole or not at all, and at once."""

    name = "file"
    software_version = "1.0"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def observe(self, vm: PluginVm) -> VmSize:
        path = self._path(vm)
        amount = Amount(**json.loads(path.read_text())) if path.exists() else vm.min
        return VmSize(amount, amount)

    def write(self, vm: PluginVm, target: Amount, deadline: WriteDeadline) -> None:
        if target.cpu_milli > vm.max.cpu_milli or target.memory_bytes > vm.max.memory_bytes:
            raise TargetRefusedError(f"{target} is above the VM's maximum, {vm.max}")
        new = self._path(vm).with_suffix(".new")
        try:
            new.write_text(json.dumps({"cpu_milli": target.cpu_milli, "memory_bytes": target.memory_bytes}))
        except OSError as error:
            raise NotWrittenError(f"{new} cannot be written: {error.strerror}") from error
        deadline.check()
        new.replace(self._path(vm))

    def _path(self, vm: PluginVm) -> Path:
        return self._directory / f"{vm.uid}.json"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--registry", required=True, help="the folder `plugins.directory` of the agent's settings"
    )
    parser.add_argument("--state", required=True, type=Path, help="a directory for sizes and generations")
    arguments = parser.parse_args()
    sizes: Path = arguments.state / "sizes"
    sizes.mkdir(parents=True, exist_ok=True)
    serve(FileResizer(sizes), registry=arguments.registry, state=arguments.state)
