"""`NodeNUMAResource`: CPUs of their own, and NUMA nodes, for pods."""
