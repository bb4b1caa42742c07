"""The memory of decisions, and the answers about them."""
