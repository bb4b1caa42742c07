"""`python -m agent`, the same as the console script."""

from agent.cli import main

main()
