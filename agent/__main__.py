"""`python -m agent`, the same as the console script."""

from agent.program import main

main()
