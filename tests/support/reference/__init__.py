"""Makes the pages below docs/reference from the programs: `python -m tests.support.reference`, which is `make reference`.

The pages are committed, so that they are there to be read; `tests/tidy/test_reference.py` compares them, and refuses what has no meaning.
"""
