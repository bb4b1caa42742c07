"""The host's control groups: the tree as kubelets lay it out, and the files of a group in both versions. Written by none of this."""
