"""The permit server.

`core` decides (pure), `ports` says what the shell needs of the world, `pools` and `clusters` implement that. `permits` turns bytes
into answers, and `program` is the command line.
"""
