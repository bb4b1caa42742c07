"""Back ends, which resize VMs: adapters of the port `VmBackend`."""
