"""What resizes a VM: adapters of the port `VmBackend`."""
