"""The informant's decisions, without I/O: which agent is in use, whether a downscale fits, what a workload does."""
