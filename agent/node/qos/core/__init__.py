"""What strategies see and decide, without I/O: states, metrics, aggregation, gates, and the strategies' decisions."""
