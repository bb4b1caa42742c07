"""QEMU guests as VMs: `core` decides by the states of QEMU and the guest, the rest speaks QMP and calls the guest's informant."""
