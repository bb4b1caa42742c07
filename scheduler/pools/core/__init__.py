"""Decisions about pools: admission state, batches, the search, claims, fair shares. Pure."""
