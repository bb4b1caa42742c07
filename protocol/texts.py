"""The one cleaner of texts from outside: peers, plugins, guests, objects, files.

It is called where such a text enters a document or an error, so that the code that shows the text later, on a
terminal or a page, need not know its origin.
"""

import re
from typing import Final


def counted(count: float, noun: str, plural: str = "") -> str:
    """Such as "1 CPU", "2 CPUs", "0.5 CPUs"; `plural` if it is not the noun and an s."""
    written = str(count) if isinstance(count, int) else f"{count:g}"
    return f"{written} {noun if count == 1 else plural or f'{noun}s'}"


# A terminal's control sequences go as a whole; taking the escape alone would leave their tail for people to read.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
)
MAX_LINE: Final = 500
"""Characters of a line, if nothing else bounds it."""


def clean(value: object, limit: int = MAX_LINE) -> str:
    """A text as one line of at most `limit` characters without control sequences; "" for any other value.

    Brackets stay: the code that shows the line must not read markup from it.
    """
    if not isinstance(value, str):
        return ""
    if len(value) <= limit and value.isprintable():  # nearly every text
        return value.strip()
    # The part that is dropped below is a bounded part of most texts; a text that is nothing else need not be read to its end.
    plain = _ESCAPES.sub("", value[: 8 * limit])
    letters = (letter if letter.isprintable() else " " if letter.isspace() else "" for letter in plain)
    kept = " ".join("".join(letters).split())
    return kept if len(kept) <= limit and len(value) <= 8 * limit else f"{kept[: limit - 1]}…"
