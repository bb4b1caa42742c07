"""Permits: `core` decides them, `service` answers requests over HTTP with them."""
