"""Puts the answer together, from what the agent and the scheduler tell, or from the one of them that answers. Pure."""
