"""Calls to the agent's peers: the scheduler, the informant, the exporter of metrics."""
