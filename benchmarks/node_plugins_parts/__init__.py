"""The parts of `benchmarks/node_plugins.py`: control groups, what collecting them costs, strategies that misbehave, calls of plugins."""
