"""Pools: plugins have a say before the VMs of a pool grow. The plugin framework of seed 000, and what Parley adds to that."""
