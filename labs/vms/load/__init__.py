"""The load of a guest: what is decided, the processes that carry it out, its messages, and the client that sets it from outside."""
