"""Pools: who has a say before the VMs of a pool grow. The plugin framework of seed 000, and what Parley does with it."""
