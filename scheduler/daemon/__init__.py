"""The wiring of a scheduler process: one core after another, leadership, and the sources that are read."""
