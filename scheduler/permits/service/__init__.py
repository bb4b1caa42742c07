"""The permit service: bytes to answers, batches, what must wait, the configuration, the journal's files, metrics."""
