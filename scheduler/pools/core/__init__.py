"""Decisions about pools: admission state, batches, the search, unmet demand, fair shares. Pure."""
