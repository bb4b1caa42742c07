"""Sources of VMs: which VMs are on this node, and how each is described."""
