"""What any long-running process here needs. A closed list of modules:

`lifecycle` (signals, drain), `supervisor` (children in their own guards), `server` and `client` (HTTP habits),
`addresses` (what others are told to call), `backoff` (a value), `logs` (structured lines), `metrics` (exposition),
`settings` (files with all faults at once), `tls` (certificates that change), `tokens` (bearer tokens), `watched_file` (read again when they change),
`yaml_reader` (YAML that means what it looks like), `threads` (blocking calls of our own).
"""
