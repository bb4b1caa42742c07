"""The scaling policies: load and size in, a goal in compute units out, each with its reasons. Pure."""
