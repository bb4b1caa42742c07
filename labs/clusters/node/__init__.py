"""One real node on this machine: kubelet, containerd and runc in mount and PID namespaces of their own."""
