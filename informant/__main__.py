"""`python -m informant`, the same as the console script."""

from informant.program import main

main()
