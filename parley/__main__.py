"""`python -m parley`, the same as the console script."""

from parley.cli import main

main()
