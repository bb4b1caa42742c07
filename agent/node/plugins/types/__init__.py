"""Our own types of plugins: their handlers, the clients that call them, and the catalogue of those that are registered."""
