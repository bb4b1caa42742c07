"""Sources of VMs, adapters of the port `VmSource`: which VMs are on this node, and how each is described."""
