"""The informant at work: its routes, its calls to agents, and the performer of the plans for the guest."""
