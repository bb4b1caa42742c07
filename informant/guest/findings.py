"""What can be had of a guest and what cannot, for a person who wants to know why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried: its name, whether it can be had, and what is so or why not."""

    name: str
    is_had: bool
    told: str


def reason_of(error: OSError) -> str:
    """What the system says of an error, as part of a sentence."""
    return (error.strerror or str(error)).lower()
