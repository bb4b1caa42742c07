"""The load of a guest: the decisions, the processes that carry it out, its messages, and the client that sets it from outside."""
