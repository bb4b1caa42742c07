"""The permit service: bytes to answers, batches, waiting requests, the configuration, the journal's files, metrics."""
