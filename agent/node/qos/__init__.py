"""The QoS manager (seed 002): strategies on a node, each behind its feature gate, in threads of their own."""
