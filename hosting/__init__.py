"""The parts that any long-running process here needs. A closed list of modules (docs/decisions/0021):

`lifecycle` (signals, drain), `supervisor` (children in their own guards), `threads` (blocking calls), `long_work` (in slices), `backoff` (a value),
`server` and `client` (HTTP), `http_connection` (one connection of a server), `addresses` (what to listen on, what others call),
`tls` (certificates that change), `tokens` (bearer tokens), `settings` (files with all faults at once), `yaml_reader` (YAML without surprises), `amounts`
(quantities in settings), `options` (command lines), `watched_file` (settings that are read again when they change), `files`
(locks, replacement as a whole), `registry` (factories by name), `logs` (structured lines), `fault_log` (a fault that lasts), `metrics` (exposition).
"""
