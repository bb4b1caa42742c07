"""What is decided about pools: admission state, probing, claims, values. Pure."""
