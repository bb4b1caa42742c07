"""The plugin types of ours: their handlers, the clients that call them, and the catalogue of those that are registered."""
