"""The soak of real guests: `python -m tests.vm.soak`, or `make vm-soak`. Its decisions are pure (`script`, `truth`, `leaks`, `log_lines`)."""
