"""`python -m parley`, the same as the console script."""

from parley.program import main

main()
