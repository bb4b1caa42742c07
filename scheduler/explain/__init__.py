"""The memory of decisions, and what is told of them."""
