"""Clusters of Kubernetes on this machine, for the demo and the tests: a control plane, hollow nodes, one real node.

Everything listens on loopback and keeps its files below one directory. The programs are built by `make kube-assets`.
"""
