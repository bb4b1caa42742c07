"""Every decision of the scheduler, without I/O. The only entry: `core.Core.apply(input) -> outputs`.

`events` are the inputs and outputs, `model` is the cluster as values, `ledger` holds the accounts, `vms` what is remembered
of each VM, `limits` the permit formula. `requests` takes a request from its arrival to its answer, `decision` judges; `extended`
and `published` are the policies for the two kinds of callers.
"""
