"""`python -m scheduler`, the same as the console script."""

from scheduler.cli import main

main()
