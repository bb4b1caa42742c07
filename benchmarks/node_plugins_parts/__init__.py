"""The parts of `benchmarks/node_plugins.py`: control groups, the cost of collecting them, strategies that misbehave, calls of plugins."""
