"""Lists of CPUs such as `0-3,8`, as the kernel, kubelets and annotations of pods write them."""

import re
from collections.abc import Iterable
from typing import Final

MAX_CPUS: Final = 8192
"""A CPU's number is smaller than this (`CONFIG_NR_CPUS` of the largest kernels)."""
_RANGE: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


class CpuListError(ValueError):
    """A text that is no list of CPUs. The message names the text and the rule."""


def cpus_of(text: str) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8`. Raises `CpuListError` for another text."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_CPUS:
            raise CpuListError(f"{text!r} is no list of CPUs such as 0-3,8 with numbers below {MAX_CPUS}")
        found.update(range(first, last + 1))
    return frozenset(found)


def cpu_list(cpus: Iterable[int]) -> str:
    """The CPUs as the kernel writes them: ascending, with ranges."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
