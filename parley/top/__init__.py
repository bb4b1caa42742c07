"""`parley top`: a live view of the VMs of one or several agents on a terminal.

`model` and `details` are pure: documents of agents become rows and lines. `source` polls the agents, `app` draws and takes keys
(the one module that may import textual), `command` is the command line.
"""
