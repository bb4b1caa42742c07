"""What can be had of a guest and what cannot, for a person who wants to know why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried: its name, whether it can be had, and what is so or why not."""

    name: str
    is_had: bool
    told: str
