"""Pods as VMs, resized in place: `distribution` and `reading` decide, `backend` calls the API server."""
