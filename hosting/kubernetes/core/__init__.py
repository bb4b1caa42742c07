"""Decisions about Kubernetes that need no I/O: knowledge of objects, and the holder of a Lease."""
