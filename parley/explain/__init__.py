"""`parley explain`: why a VM has the size that it has."""
