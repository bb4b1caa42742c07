"""Every decision of an agent, without I/O: `apply(state, event)` and `plan(state, now, policy)`."""
