"""`python -m tests.support.reference`: write all pages."""

import sys

from tests.support.reference.pages import made, written_to

if __name__ == "__main__":
    pages, faults = made()
    if faults:
        sys.exit("\n".join(faults))
    written_to(pages)
