"""The shared parts of the benchmarks of the permit server and the agent: the load and the programs under it. No benchmark itself.

`http` is one connection as raw bytes, `agents` the agents with their requests, `drive` sends them in a closed loop or at a pace,
`renewing` lets them renew as real ones do, `cluster` writes the cluster file, `program` starts the scheduler or the agent on a core of
its own, `guests` are informants for the VMs of an agent, `figures` prints, `trivial` is a server that decides nothing and so shows the
generator's own limit, `caps` are plugins for its pools. `make bench` runs the files above this folder only.
"""
