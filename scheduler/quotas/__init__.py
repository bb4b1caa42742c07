"""Elastic quotas: a tree of quotas with min and max that lend each other what they do not use. Pure."""
