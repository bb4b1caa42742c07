"""The next resources to plug, switch and eject; computes only.

`machine` holds the view of QEMU, `state` the view of the guest and all knowledge of one VM. `apply` brings the state forward, `plan`
names the next actions, `cpus` and `memory` the next step; `report` makes the texts for others.
"""
