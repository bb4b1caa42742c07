"""QEMU guests as VMs: `core` decides by what QEMU and the guest show, the rest speaks QMP and calls the guest's informant."""
