"""Every decision of an agent, without I/O: `step` applies the events (`apply`) and makes a plan (`plan`)."""
