"""The wiring of a scheduler process: one core after another, leadership, and what is read from where."""
