"""`python -m scheduler`, the same as the console script."""

from scheduler.program import main

main()
