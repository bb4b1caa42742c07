"""Numbers with their nouns, for texts that people read."""


def counted(count: float, noun: str, plural: str = "") -> str:
    """Such as "1 CPU", "2 CPUs", "0.5 CPUs"; `plural` where it is not the noun and an s."""
    written = str(count) if isinstance(count, int) else f"{count:g}"
    return f"{written} {noun if count == 1 else plural or f'{noun}s'}"
