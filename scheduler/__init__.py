"""The permit server: `scheduler.core` decides (pure), `scheduler.permits` listens, reads the cluster and answers."""
