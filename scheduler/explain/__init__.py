"""What is remembered of decisions, and what is told of them."""
