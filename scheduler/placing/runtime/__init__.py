"""Runs plugins at their extension points, and keeps the pods that wait for a permit."""
