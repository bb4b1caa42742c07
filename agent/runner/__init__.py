"""Drives the core of one VM: takes events, plans, starts one task per action."""
