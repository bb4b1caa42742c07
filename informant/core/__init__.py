"""The informant's decisions, without I/O: agents and wishes, limits and downscales, shortages, synthetic workloads."""
