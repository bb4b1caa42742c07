"""The parts of `benchmarks/kube.py`."""
