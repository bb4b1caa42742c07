"""What the benchmarks of the permit server share: the load generator and the programs under it. No benchmark itself.

`http` is one connection as raw bytes, `agents` the agents with their requests, `drive` sends them in a closed loop or
at a pace, `renewing` lets them renew as real ones do, `cluster` writes the cluster file, `program` starts the
scheduler on a core of its own, `figures` prints, `trivial` is a server that decides nothing and so shows where the
generator's own limit lies, `caps` are plugins for its pools. `make bench` runs the files above this folder only.
"""
