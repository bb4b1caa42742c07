"""The plugins that should be registered, those that are, and the next step: the caches of seed 003 and their reconciler. Pure."""
