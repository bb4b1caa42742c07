"""`ElasticQuota`: quotas in a tree, with min and max, that lend each other what they do not use."""
