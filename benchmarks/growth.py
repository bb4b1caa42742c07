"""How fast the demo's `this-machine` follows this machine's load: seconds from load to growth, and back.

`benchmarks/growth.py [--short]`: runs `parley demo --load` (--short: without waiting for the way back).
"""

import argparse
import json
import platform
import subprocess
import sys

import psutil


def main() -> None:
    """Run the demo and show its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="do not wait for the way back")
    seconds = "12" if parser.parse_args().short else "35"
    print(f"running the demo for {seconds} s …", flush=True)
    command = [
        sys.executable,
        "-m",
        "parley",
        "demo",
        "--load",
        "--quiet",
        "--output",
        "json",
        "--seconds",
        seconds,
    ]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    load, node = result["load"], result["nodes"]["demo-node"]
    print(f"growth after the load's start: {load['growth_s']} s")
    print(f"back after its end:            {load['shrink_s']} s")
    print(f"largest use of the node:       {node['largest_cpu']:g} of {node['reservable_cpu']:g} CPUs")
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    print(json.dumps({"benchmark": "growth", "machine": machine, **load, "overcommits": node["overcommits"]}))


if __name__ == "__main__":
    main()
