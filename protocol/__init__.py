"""The values, versions, messages and codec that the three parties share. No I/O."""
