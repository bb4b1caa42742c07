"""The cluster as the API server of Kubernetes shows it: nodes, pods, VirtualMachines, ScalingPolicies, configuration, pools."""
