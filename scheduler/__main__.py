"""`python -m scheduler`, the same as the console script."""

from scheduler.service.cli import main

main()
