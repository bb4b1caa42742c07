"""The runner of one VM: it takes events, lets the core plan, and starts one task for each action."""
