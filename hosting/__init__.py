"""What any long-running process here needs. A closed list of modules:

`lifecycle` (signals, drain), `supervisor` (children in their own guards), `server` and `client` (HTTP habits),
`backoff` (a value), `logs` (structured lines), `metrics` (exposition), `settings` (files with all faults at once).
"""
