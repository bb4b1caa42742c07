"""Which decisions are remembered, and which of them are the same. Pure."""
