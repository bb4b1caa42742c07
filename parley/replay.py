"""`parley replay DIR`: a scheduler's journal through the same core again."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from protocol.texts import counted
from scheduler.permits.core import journal, snapshots
from scheduler.permits.service.journal_files import files_of, is_cut, lines

SAME: Final = 0
DIFFERENT: Final = 1
UNREADABLE: Final = 2
INCOMPLETE: Final = 3


@dataclass(slots=True)
class _Found:
    """The findings of a replay so far. `missing` has a line for each part of the journal that could not be replayed."""

    files: int = 0
    inputs: int = 0
    gaps: int = 0
    missing: list[str] = field(default_factory=list)
    difference: journal.Difference | None = None
    where: str = ""
    fault: str = ""

    def code(self) -> int:
        if self.fault:
            return UNREADABLE
        if self.difference is not None:
            return DIFFERENT
        return INCOMPLETE if self.missing else SAME

    def as_json(self) -> str:
        differs = self.difference
        shown = None
        if differs is not None:
            shown = {"where": self.where, "recorded": differs.recorded, "replayed": differs.replayed}
        result = {
            "files": self.files,
            "inputs": self.inputs,
            "gaps": self.gaps,
            "missing": self.missing,
            "difference": shown,
            "fault": self.fault,
        }
        return json.dumps(result)

    def as_text(self) -> str:
        differs = self.difference
        if self.fault:
            return self.fault
        if differs is not None:
            both = f"  recorded: {differs.recorded}\n  replayed: {differs.replayed}"
            return f"{self.where}: the decision differs\n{both}"
        total = f"{counted(self.inputs, 'input')} in {counted(self.files, 'file')}"
        if not self.missing:
            return f"{total}: the same decisions"
        head = (
            f"{total}: no decision differs, but this is not all"
            if self.inputs
            else f"{total}: nothing to replay"
        )
        return "\n".join([head, *(f"  {each}" for each in self.missing)])


def _replay(path: Path, found: _Found) -> None:
    """Replay one file, up to a gap or a fault."""
    running: journal.Replay | None = None
    found.files += 1
    number = 1  # of the line that is read next
    try:
        for line in lines(path):
            read = journal.read_line(line)
            match read:
                case snapshots.Snapshot():
                    running = journal.Replay(read)
                case journal.Gap(lost):
                    found.gaps += 1
                    what = f"{counted(lost, 'line')} lost here; the rest of this file is not replayed"
                    found.missing.append(f"{path.name}:{number}: {what}")
                    return
                case journal.Step():
                    if running is None:
                        found.fault = f"{path.name}:{number}: the file does not begin with a snapshot"
                        return
                    found.inputs += 1
                    found.difference = running.take(read)
                    if found.difference is not None:
                        found.where = f"{path.name}:{number}"
                        return
            number += 1
        if is_cut(path):
            found.missing.append(f"{path.name}:{number}: the last line is only half written")
        elif running is None:
            found.missing.append(f"{path.name}: the file is empty")
    except journal.JournalError as error:
        found.fault = f"{path.name}:{number}: {error}"
    except OSError as error:
        found.fault = f"{path.name} cannot be read: {error.strerror}"
    except Exception:  # noqa: BLE001 - an edited line may do anything to the core; that is no decision that differs
        found.fault = (
            f"{path.name}:{number}: cannot be replayed: the scheduler's core cannot take what stands there"
        )


def run(directory: Path, output: str) -> int:
    """Replay every file, oldest first; each begins with a snapshot of its own."""
    found = _Found()
    for path in files_of(directory):
        _replay(path, found)
        if found.fault or found.difference is not None:
            break
    if not found.files:
        found.fault = f"{directory} holds no journal"
    if not found.inputs and not found.missing:
        found.missing.append("no file holds an input")
    if output == "json":
        click.echo(found.as_json())
    else:
        click.echo(found.as_text(), err=bool(found.fault))
    return found.code()
