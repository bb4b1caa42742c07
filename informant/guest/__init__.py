"""What touches the guest: /proc, the workload's cgroup, events of files, our own protection, what was approved."""
