"""The program inside the VM: reports load, approves downscales, and asks its agent for more.

`core` decides (pure). `guest` reads and writes what belongs to the guest, `service` serves and calls agents, `diagnose` tells what
is seen and controlled (`--once`), and `program` is the command line.
"""
