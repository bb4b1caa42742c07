"""The program inside the VM: reports load, approves downscales, and speaks to the agent that is in use.

`informant.core` decides (pure); `machine` reads /proc, `service` listens and calls agents, `cli` is the program.
"""
