"""Bearer tokens: read from a file, shown in a header, compared without telling how much of a guess was right."""

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 512
RULE: Final = f"{MIN_CHARACTERS} to {MAX_CHARACTERS} printable characters without blanks"


class TokenFile(click.Path):
    """A command line's file with a bearer token, which is read at once."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The token. Fails where the file holds none; never quotes what it holds."""
        path = Path(str(super().convert(value, param, ctx)))
        try:
            with path.open("rb") as file:
                content = file.read(4096)
        except OSError as error:
            self.fail(f"{path} cannot be read: {error.strerror}", param, ctx)
        try:
            token = content.decode("ascii").strip()
        except UnicodeDecodeError:
            self.fail(f"{path} must hold a token of {RULE}; it holds bytes that are no ASCII", param, ctx)
        if not MIN_CHARACTERS <= len(token) <= MAX_CHARACTERS:
            found = f"more than {MAX_CHARACTERS}" if len(token) > MAX_CHARACTERS else str(len(token))
            self.fail(f"{path} must hold a token of {RULE}; it holds {found} characters", param, ctx)
        if not token.isprintable() or " " in token:
            self.fail(f"{path} must hold a token of {RULE}; it holds others", param, ctx)
        return token


def headers(token: str | None) -> dict[str, str] | None:
    """The headers that show a token; None without one."""
    return {"Authorization": f"Bearer {token}"} if token is not None else None


def is_shown(token: str, sent: Mapping[str, str]) -> bool:
    """Whether a request's headers show this token."""
    given = sent.get("authorization", "")
    return hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode())
