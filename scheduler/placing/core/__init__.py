"""The framework's decisions, without I/O: outcomes, results of plugins, waiting pods, the queue."""
