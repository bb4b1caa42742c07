"""Access to the guest: /proc, the workload's cgroup, events of files, self-protection, the approved size."""
