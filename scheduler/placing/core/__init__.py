"""What the framework decides without I/O: outcomes, results of plugins, waiting pods, the queue."""
