"""The scheduling plugins that come with the scheduler."""
