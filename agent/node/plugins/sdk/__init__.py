"""What authors of node plugins use, offered as `parley.node_plugins`: values, base classes, and what serves a plugin."""
