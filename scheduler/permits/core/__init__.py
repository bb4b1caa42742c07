"""Every decision of the scheduler, without I/O. The only entry: `core.Core.apply(input) -> outputs`.

`events` are the inputs and outputs, `model` is the cluster as values, `ledger` holds the accounts, `state` all that is remembered
beside them, `limits` the permit formula. `core` takes a request from its arrival to its answer, `decision` judges; `parley_callers`
and `neon_callers` are the policies for the two kinds of callers.
"""
