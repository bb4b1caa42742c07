"""The plugin manager: plugins that register over a Unix socket, as with the kubelet, and the calls to those of our own types."""
