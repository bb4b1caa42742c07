"""Ways to the scheduler and the agents: by their addresses, or through the API server of Kubernetes."""
