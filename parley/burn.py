"""`python -m parley.burn SECONDS`: keeps one core busy for a while. The demo starts one for each core."""

import sys
import time


def main() -> None:
    until_s = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until_s:
        sum(range(10_000))


if __name__ == "__main__":
    main()
