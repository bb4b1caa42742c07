"""What is known of plugins, which should be registered, and what happens next: the caches of seed 003 and their reconciler. Pure."""
