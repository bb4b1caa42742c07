"""The permit server: `scheduler.core` decides (pure), `scheduler.service` listens, reads the cluster and answers."""
