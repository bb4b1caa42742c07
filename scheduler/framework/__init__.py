"""The scheduling framework: plugins at extension points decide where a pod goes. Sources: seeds 001 and 002."""
