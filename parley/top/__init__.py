"""`parley top`: a live view of the VMs of one or several agents on a terminal.

`model` and `details` are pure: what agents say becomes rows and lines. `source` asks the agents, `app` draws and takes keys
(the one module that may import textual), `command` is the command line.
"""
