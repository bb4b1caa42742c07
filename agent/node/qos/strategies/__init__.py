"""The QoS strategies that come with the agent."""
