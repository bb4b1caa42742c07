"""Moments as texts, RFC 3339 in UTC, and back."""

from datetime import UTC, datetime, timedelta


def ago(now: datetime, seconds: float) -> str:
    """The moment so many seconds before `now`, to the millisecond."""
    at = (now - timedelta(seconds=seconds)).astimezone(UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> datetime:
    """A moment for sorting; one that cannot be read is the oldest of all."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
