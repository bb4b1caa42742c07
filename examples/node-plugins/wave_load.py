"""A metrics source: load that rises and falls once in ten minutes, another phase for each VM.

python examples/node-plugins/wave_load.py --registry /var/lib/parley/plugins_registry
"""

import argparse
import math
import time
import zlib

from parley.node_plugins import MetricsSourcePlugin, PluginVm, VmReading, serve

PERIOD_S = 600.0


class WaveLoad(MetricsSourcePlugin):
    """Makes load up instead of asking the VM's hypervisor, as a real source would do."""

    name = "wave-load"
    software_version = "1.0"

    def read(self, vm: PluginVm) -> VmReading:
        phase = zlib.crc32(vm.uid.encode()) / 2**32
        share = (1 + math.sin(2 * math.pi * (time.time() / PERIOD_S + phase))) / 2
        cpus = share * vm.max.cpu_milli / 1000
        free = round((1 - share) * vm.max.memory_bytes)
        return VmReading(
            load1=cpus, load5=cpus, memory_total_bytes=vm.max.memory_bytes, memory_available_bytes=free
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--registry", required=True, help="the folder `plugins.directory` of the agent's settings"
    )
    serve(WaveLoad(), registry=parser.parse_args().registry)
