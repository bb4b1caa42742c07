"""The plugin API of seed 000, the chain of plugins, and the queue in which growth waits for them."""
