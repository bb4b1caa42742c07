"""Decisions about Kubernetes that need no I/O: what is known of objects, and who holds a Lease."""
