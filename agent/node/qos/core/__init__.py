"""The input and the decisions of strategies, without I/O: states, metrics, aggregation, gates, and the strategies' decisions."""
