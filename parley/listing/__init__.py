"""Lists of what the programs know, as tables or for scripts."""
