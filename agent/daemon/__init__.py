"""The program `parley-agent`: wiring, callbacks, status, and its life."""
