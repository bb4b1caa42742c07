"""Every decision of an agent, without I/O: `step` applies what has happened (`apply`) and makes a plan (`plan`)."""
