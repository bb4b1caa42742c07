"""`parley replay DIR`: a scheduler's journal through the same core again."""

import json
from dataclasses import dataclass
from pathlib import Path

import click

from scheduler.core import journal
from scheduler.service.journal_files import files_of, lines


@dataclass(slots=True)
class _Found:
    """What a replay has come to so far."""

    files: int = 0
    inputs: int = 0
    gaps: int = 0
    difference: journal.Difference | None = None
    where: str = ""
    fault: str = ""


def _replay(path: Path, found: _Found) -> bool:
    """Replay one file; whether to go on with the next."""
    running: journal.Replay | None = None
    found.files += 1
    for number, line in enumerate(lines(path), start=1):
        where = f"{path.name}:{number}"
        try:
            read = journal.read_line(line)
        except journal.JournalError as error:
            found.fault = f"{where}: {error}"
            return False
        match read:
            case journal.Snapshot():
                running = journal.Replay(read)
            case journal.Gap(lost):
                found.gaps += 1
                click.echo(
                    f"{where}: {lost} lines were lost here; the rest of this file is not replayed", err=True
                )
                return True
            case journal.Step():
                if running is None:
                    found.fault = f"{where}: the file does not begin with a snapshot"
                    return False
                difference = running.take(read)
                found.inputs += 1
                if difference is not None:
                    found.difference, found.where = difference, where
                    return False
    return True


def run(directory: Path, output: str) -> int:
    """Replay every file, oldest first; each begins with a snapshot of its own."""
    found = _Found()
    for path in files_of(directory):
        if not _replay(path, found):
            break
    if not found.files:
        found.fault = f"{directory} holds no journal"
    differs = found.difference
    if output == "json":
        told = None
        if differs is not None:
            told = {"where": found.where, "recorded": differs.recorded, "replayed": differs.replayed}
        result = {
            "files": found.files,
            "inputs": found.inputs,
            "gaps": found.gaps,
            "difference": told,
            "fault": found.fault,
        }
        click.echo(json.dumps(result))
    elif found.fault:
        click.echo(found.fault, err=True)
    elif differs is not None:
        click.echo(
            f"{found.where}: the decision differs\n  recorded: {differs.recorded}\n  replayed: {differs.replayed}"
        )
    else:
        click.echo(f"{found.inputs} inputs in {found.files} files: the same decisions")
    if found.fault:
        return 2
    return 1 if differs is not None else 0
