"""The HTTP service that an unmodified kube-scheduler calls as its extender."""
