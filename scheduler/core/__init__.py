"""Every decision of the scheduler, without I/O. One door: `core.Core.apply(input) -> outputs`.

`model` the cluster as values; `ledger` the accounts; `limits` the permit formula; `events` inputs and outputs;
`book` what is remembered of each VM; `extended` and `published` the two kinds of callers; `core` the door.
"""
