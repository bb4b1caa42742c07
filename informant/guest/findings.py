"""The abilities of the informant in a guest, with reasons for people."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure that was tried: its name, whether it can be had, and the present state or the reason."""

    name: str
    is_had: bool
    told: str


def reason_of(error: OSError) -> str:
    """The system's text for an error, as part of a sentence."""
    return (error.strerror or str(error)).lower()
