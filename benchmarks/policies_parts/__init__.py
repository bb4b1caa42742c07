"""The parts of `benchmarks/policies.py`. No benchmark itself.

`shapes` are curves that workloads are made of, `families` the nine families of workloads, `guest` is one VM with its
informant, `replay` runs a rule of sizes against a VM's demand, `agents` are the rules that run the agent's own code,
`peers` the rules of others, `score` counts.
"""
