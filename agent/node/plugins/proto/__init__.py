"""The messages and services between the agent and node plugins: the .proto files, and the modules that `make protos` makes of them."""
