"""Clusters and guests on this machine, for the demo, the tests and `parley vm`: tools of development, no part of a deployment."""
