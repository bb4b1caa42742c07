"""The placing of pods: plugins at extension points decide, in cycles of our own or for an unmodified kube-scheduler. Sources: seeds 001 and 002."""
