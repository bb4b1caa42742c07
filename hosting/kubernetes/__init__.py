"""The common parts of programs that talk to the API server of Kubernetes: calls, reading objects, list and watch, leases, Events.

Only `hosting.kubernetes.connection` imports the client library, which is an extra (`kubernetes`); decision 26 says why the rest is here.
"""
