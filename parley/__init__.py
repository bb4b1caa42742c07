"""The command line `parley`: the demo, the status and the live view of an agent's VMs, the replay of a journal."""
