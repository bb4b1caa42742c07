"""The daemon on each node, with one runner for each VM.

`core` decides (pure). `sources` says which VMs are on the node, `peers` calls other programs, `backends` resizes. `runner` drives
the core of one VM, `daemon` puts all of it together, and `program` is the command line.
"""
