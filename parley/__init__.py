"""The command line: `parley demo` starts the programs on one machine; `parley status` shows an agent's VMs."""
