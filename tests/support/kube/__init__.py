"""Real control planes in tests: the programs that this checkout's tests use, and objects in a namespace.

The clusters themselves are `labs.clusters`, which the demo starts, too. The fixtures are in `fixtures`.
"""
