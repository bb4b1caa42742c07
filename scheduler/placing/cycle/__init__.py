"""A scheduler of pods: the queue and the cycle over the plugins, for pods that name us as their scheduler."""
