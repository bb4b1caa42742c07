"""`DeviceShare`: which GPUs and other devices of its node a pod has, whole ones and shares."""
