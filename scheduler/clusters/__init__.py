"""Where nodes, VMs and pods are read from: one adapter of the port `Cluster` each."""
