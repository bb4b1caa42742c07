"""The daemon on each node, one runner per VM: `core` decides, `links` and `backends` act, `runner` drives, `daemon` wires."""
