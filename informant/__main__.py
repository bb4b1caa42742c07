"""`python -m informant`, the same as the console script."""

from informant.cli import main

main()
