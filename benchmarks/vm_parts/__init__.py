"""The parts of `benchmarks/vm.py`: what notes moments inside a guest, one clock for both sides, stages of a growth."""
