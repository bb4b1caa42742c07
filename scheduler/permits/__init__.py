"""The scheduler's shell: the cluster adapter, the permit service, metrics, and the program `parley-scheduler`."""
