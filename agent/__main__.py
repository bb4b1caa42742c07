"""`python -m agent`, the same as the console script."""

from agent.daemon.cli import main

main()
