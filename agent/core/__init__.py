"""Every decision of an agent, without I/O: `step` applies the events and makes a plan (`plan`)."""
