"""The parts of `benchmarks/vm.py`: the program that notes moments inside a guest, one clock for both sides, stages of a growth."""
