"""Pools over HTTP: the API `/v1/pools`, and metrics."""
