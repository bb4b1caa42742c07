"""Tables, filters and lines of the lists. Pure."""
