"""The agent's links to its peers: the scheduler, the informant, the metrics exporter."""
