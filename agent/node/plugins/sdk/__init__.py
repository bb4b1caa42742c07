"""The API of authors of node plugins, offered as `parley.node_plugins`: values, base classes, and the server of a plugin."""
