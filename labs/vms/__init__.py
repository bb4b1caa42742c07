"""QEMU guests on this machine for `parley vm`, the demo and the tests: their image, their processes, saved states.

Needs QEMU, and a kernel that `make vm-assets` gets; KVM is not needed.
"""
