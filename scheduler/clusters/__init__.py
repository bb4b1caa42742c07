"""Sources of nodes, VMs and pods: adapters of the port `Cluster`, one module each."""
